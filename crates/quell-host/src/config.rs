//! Configuration: settings as a table, for the server and the coordinator.
//!
//! An entry of a table ([`settings!`](crate::settings)) defines all of a setting but its use. Its name gives the
//! key in a file, the flag and the environment variable, and the first paragraph of its docs is the help. A check may
//! follow the default. Each service adds only what has to fit together in it.

mod error;
mod fit;
mod table;
mod toml_file;
mod value;

pub use error::{ConfigError, field};
pub use fit::{Half, check_pair, check_reachable, check_tls, check_user_header};
pub use table::{FlagShape, RawSettings, Setting, as_text, first_paragraph};
pub use toml_file::{line_of, mistake, parse, write};
pub use value::{
    FlagValue, SettingValue, TextValue, at_least, check_home, host_names, no_shorter_than, whole,
};
