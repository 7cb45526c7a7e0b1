//! Console: that the header of people and its proxies fit together.

use quell_host::user_header::check_user_header;

use super::{Config, ConfigError, field};

pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let has_proxies = !config.console_proxy.is_empty();
    let has_header = config.console_user_header.is_some();
    let checked = check_user_header(has_header, has_proxies, config.credentials.is_some());
    checked.map_err(|(key, reason)| field(key, reason))
}
