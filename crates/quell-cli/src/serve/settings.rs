//! Settings: the flags and variables of `quell serve`, made of the server's table of settings.

use std::ffi::OsString;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint};
use quell_server::config::{FlagShape, RawConfig, Setting};

/// What flags and variables say of settings.
#[derive(Debug)]
pub(super) struct Settings(Vec<(Setting, Vec<OsString>)>);

impl Settings {
    /// Replaces what a file says.
    ///
    /// # Errors
    /// The key of a setting and what is wrong with it.
    pub(super) fn apply(&self, raw: &mut RawConfig) -> Result<(), (&'static str, String)> {
        let mut all = self.0.iter();
        all.try_for_each(|(setting, values)| {
            let set = raw.set(setting, values);
            set.map_err(|reason| (setting.key, reason))
        })
    }
}

impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        command.args(RawConfig::settings().into_iter().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let values = |setting: Setting| {
            let values = matches.get_raw(setting.key)?.map(OsString::from).collect();
            Some((setting, values))
        };
        Ok(Self(
            RawConfig::settings()
                .into_iter()
                .filter_map(values)
                .collect(),
        ))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The flag of a setting, and its variable.
fn arg(setting: Setting) -> Arg {
    let default = setting.default.as_ref();
    let default = default.map(|default| format!(" [default: {default}]"));
    let arg = Arg::new(setting.key)
        .long(setting.flag())
        .env(setting.variable())
        .help(setting.help.clone() + &default.unwrap_or_default())
        .help_heading(setting.heading)
        .value_name(setting.value_name)
        .allow_hyphen_values(setting.value_name == "FILE")
        // A URL may have a password.
        .hide_env_values(matches!(setting.value_name, "SOURCE" | "URL"))
        .value_hint(match setting.value_name {
            "SOURCE" | "DIR" => ValueHint::AnyPath,
            _ => ValueHint::Unknown,
        });
    let arg = match setting.shape {
        FlagShape::Single => arg.action(ArgAction::Set),
        FlagShape::List => arg.action(ArgAction::Append),
        FlagShape::Switch => {
            let arg = arg.num_args(0..=1).require_equals(true);
            arg.default_missing_value("true")
        }
    };
    let check = move |value: OsString| {
        let set = RawConfig::default().set(&setting, std::slice::from_ref(&value));
        set.map(|()| value)
    };
    arg.value_parser(OsStringValueParser::new().try_map(check))
}
