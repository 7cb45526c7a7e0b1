//! The Quell server as a library: HTTP and RESP listeners, reload, metrics and persistence.
