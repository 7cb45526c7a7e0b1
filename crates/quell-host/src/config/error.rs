//! Reason why there is no configuration.

/// Reason why there is no configuration. The text says what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file is not TOML, or has an unknown field.
    #[error("{file}: {reason}")]
    File {
        /// The file, with line and column if they are known.
        file: String,
        /// The fault, and what to write.
        reason: String,
    },
    /// The value of a field is impossible.
    #[error("{field}: {reason}")]
    Field {
        /// The field.
        field: &'static str,
        /// The fault, and what to write.
        reason: String,
    },
}

/// The error for an impossible value.
#[must_use]
pub fn field(field: &'static str, reason: impl Into<String>) -> ConfigError {
    let reason = reason.into();
    ConfigError::Field { field, reason }
}
