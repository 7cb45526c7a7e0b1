//! Settings: the flags and variables of a service, made of its table of settings.

use std::ffi::OsString;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint};
use quell_host::config::{FlagShape, RawSettings, Setting};

/// Settings as flags and variables give them.
#[derive(Debug)]
pub(crate) struct Settings<R>(Vec<(Setting<R>, Vec<OsString>)>);

impl<R: RawSettings> Settings<R> {
    /// Replaces what a file says.
    ///
    /// # Errors
    /// The key of a setting and what is wrong with it.
    pub(crate) fn apply(&self, raw: &mut R) -> Result<(), (&'static str, String)> {
        let mut all = self.0.iter();
        all.try_for_each(|(setting, values)| {
            let set = (setting.set)(raw, values);
            set.map_err(|reason| (setting.key, reason))
        })
    }
}

impl<R: RawSettings> Args for Settings<R> {
    fn augment_args(command: Command) -> Command {
        command.args(R::settings().into_iter().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<R: RawSettings> FromArgMatches for Settings<R> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let values = |setting: Setting<R>| {
            let values = matches.get_raw(setting.key)?.map(OsString::from).collect();
            Some((setting, values))
        };
        Ok(Self(R::settings().into_iter().filter_map(values).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The flag of a setting, and its variable.
fn arg<R: RawSettings>(setting: Setting<R>) -> Arg {
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
        let set = (setting.set)(&mut R::default(), std::slice::from_ref(&value));
        set.map(|()| value)
    };
    arg.value_parser(OsStringValueParser::new().try_map(check))
}
