"""Runs a real Apache Kafka on this machine, and the processes beside it.

    from logtx.integration.local.cluster import LocalCluster, LocalKafka

    with LocalKafka(Path("data")) as kafka:
        print(kafka.bootstrap_servers)
    with LocalCluster(Path("data-of-three")) as kafka:
        kafka.broker(2).kill()

Owns: Kafka's jars and the Java that runs them, brokers of one KRaft cluster, topics of tests and
demos, and `processes`, the one way to start, watch and end a child process. Imports `journal`.
Never imports a producer, a consumer or another package of `integration/`.
"""
