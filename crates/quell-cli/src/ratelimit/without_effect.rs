//! Variables of envoyproxy/ratelimit that mean nothing here.

/// Variables that have no effect here, and why.
pub(super) const WITHOUT_EFFECT: [(&[&str], &str); 26] = [
    (
        &["CACHE_KEY_PREFIX"],
        "keys of Quell have a prefix of their own",
    ),
    (
        &[
            "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
            "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
            "XDS_CLIENT_BACKOFF_JITTER",
            "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
            "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
        ],
        "a stream that ends is opened again within a second, and later within a minute",
    ),
    (
        &["EXPIRATION_JITTER_MAX_SECONDS"],
        "keys expire with their windows",
    ),
    (
        &["EXTRA_TAGS"],
        "statistics have no tags but those of their limits",
    ),
    (
        &["GRPC_MAX_CONNECTION_AGE_GRACE"],
        "a connection ends when its calls are answered",
    ),
    (
        &["LOCAL_CACHE_SIZE_IN_BYTES"],
        "a refusal is remembered in the store, for refunds",
    ),
    (
        &[
            "MEMCACHE_HOST_PORT",
            "MEMCACHE_MAX_IDLE_CONNS",
            "MEMCACHE_SRV",
            "MEMCACHE_SRV_REFRESH",
            "MEMCACHE_TLS",
            "MEMCACHE_TLS_CACERT",
            "MEMCACHE_TLS_CLIENT_CERT",
            "MEMCACHE_TLS_CLIENT_KEY",
            "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION",
        ],
        "states are in Redis, or in memory",
    ),
    (
        &["PROMETHEUS_MAPPER_YAML"],
        "metrics have the names of that service's own mapping",
    ),
    (
        &["PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS"],
        "response times have the name and the unit of Quell",
    ),
    (
        &["REDIS_CLUSTER_PIPELINE_PARALLELISM"],
        "calls on different servers run at once",
    ),
    (
        &["REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"],
        "/readyz tells whether the store answers",
    ),
    (
        &[
            "REDIS_PERSECOND",
            "REDIS_PERSECOND_AUTH",
            "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
            "REDIS_PERSECOND_PIPELINE_LIMIT",
            "REDIS_PERSECOND_PIPELINE_WINDOW",
            "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR",
            "REDIS_PERSECOND_POOL_SIZE",
            "REDIS_PERSECOND_SENTINEL_AUTH",
            "REDIS_PERSECOND_SOCKET_TYPE",
            "REDIS_PERSECOND_TIMEOUT",
            "REDIS_PERSECOND_TLS",
            "REDIS_PERSECOND_TYPE",
            "REDIS_PERSECOND_URL",
        ],
        "limits of a second are in the same store",
    ),
    (
        &["REDIS_PIPELINE_LIMIT", "REDIS_PIPELINE_WINDOW"],
        "calls that come together are sent together",
    ),
    (
        &["REDIS_POOL_ON_EMPTY_BEHAVIOR", "REDIS_POOL_SIZE"],
        "one connection carries many calls",
    ),
    (&["REDIS_SENTINEL_AUTH"], "sentinels get no password"),
    (
        &[
            "REDIS_STARTUP_INITIAL_INTERVAL",
            "REDIS_STARTUP_MAX_ELAPSED_TIME",
            "REDIS_STARTUP_MAX_INTERVAL",
        ],
        "the server starts without its store, and asks it again until it answers",
    ),
    (
        &["REDIS_TLS_CACERT"],
        "authorities are those of the system: SSL_CERT_FILE names a file with others",
    ),
    (
        &["REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"],
        "the store is told a password",
    ),
    (
        &["REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"],
        "the store's certificate must have the name that REDIS_URL says",
    ),
    (
        &["RUNTIME_IGNOREDOTFILES"],
        "files whose names begin with a dot are never read",
    ),
    (
        &["RUNTIME_WATCH_ROOT"],
        "the directory is watched, and links to it",
    ),
    (
        &["STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"],
        "a call that begins above a limit is charged under none",
    ),
    (
        &[
            "TRACING_SERVICE_INSTANCE_ID",
            "TRACING_SERVICE_NAME",
            "TRACING_SERVICE_NAMESPACE",
        ],
        "write OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES",
    ),
    (
        &["USE_CALENDAR_MONTH_RATE_LIMIT"],
        "months are always those of the calendar",
    ),
    (
        &["USE_DOG_STATSD", "USE_DOG_STATSD_MOGRIFIERS"],
        "statistics go to statsd or Prometheus",
    ),
    (
        &["XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"],
        "a message has at most 16 MiB",
    ),
];
