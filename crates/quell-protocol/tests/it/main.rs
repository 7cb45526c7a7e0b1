//! Bytes in, bytes out: the wire as clients see it.
