//! Table: the macro that generates a configuration from a list of settings.

use std::ffi::OsString;
use std::fmt;

/// Raw values of all settings of a service.
pub trait RawSettings: Clone + fmt::Debug + Default + 'static {
    /// All settings that have a flag and an environment variable.
    #[must_use]
    fn settings() -> Vec<Setting<Self>>;
}

/// A setting of `R`, for programs that add a flag and an environment variable for it.
#[derive(Clone, Debug)]
pub struct Setting<R> {
    /// Its key in a configuration file, such as `max_keys` or `authorize.gateway`.
    pub key: &'static str,
    /// The heading that a help shows it under.
    pub heading: &'static str,
    /// Its environment variable, if that is not made of the key.
    pub variable: Option<&'static str>,
    /// Name of its value in a help, such as `BYTES`.
    pub value_name: &'static str,
    /// Its effect, in one line.
    pub help: String,
    /// Its default as it is written; none for lists and for what is off by default.
    pub default: Option<String>,
    /// Shape of its flag.
    pub shape: FlagShape,
    /// Replaces the setting by the values of its flag or variable, or says what is wrong with them.
    pub set: fn(&mut R, &[OsString]) -> Result<(), String>,
}

/// Shape of a flag for a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagShape {
    /// Yes or no; the flag alone means yes.
    Switch,
    /// One value.
    Single,
    /// Several values: the flag may be repeated, and each value may hold several with commas.
    List,
}

impl<R> Setting<R> {
    /// The name of its flag, without the dashes before it: `max-keys`.
    #[must_use]
    pub fn flag(&self) -> String {
        self.key.replace(['_', '.'], "-")
    }

    /// Its environment variable: `QUELL_MAX_KEYS`.
    #[must_use]
    pub fn variable(&self) -> String {
        match self.variable {
            Some(variable) => variable.to_owned(),
            None => format!("QUELL_{}", self.flag().replace('-', "_").to_uppercase()),
        }
    }
}

/// The first paragraph of a doc comment, without the backslashes that Markdown needs.
#[must_use]
pub fn first_paragraph(lines: &[&str]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| line.trim()).collect();
    let paragraph = lines.split(|line| line.is_empty()).next();
    paragraph.unwrap_or_default().join(" ").replace('\\', "")
}

/// A value as it is written outside of a file.
pub fn as_text(raw: impl serde::Serialize) -> Option<String> {
    match toml::Value::try_from(raw).ok()? {
        toml::Value::String(text) => Some(text),
        toml::Value::Array(_) => None,
        other => Some(other.to_string()),
    }
}

/// Generates from a list of settings
///
/// - a struct of their values, with its defaults;
/// - a struct of what was written of them, which reads files;
/// - the way from each to the other;
/// - the list of [`Setting`](crate::config::Setting)s, without those that have no `<VALUE>` and thus no flag.
///
/// `$place` is where a raw configuration `$root` has the second struct, and `$above` what the keys of
/// the settings begin with there. A variable that is not made of the key stands behind the value's name.
#[macro_export]
macro_rules! settings {
    (
        $(#[$about:meta])*
        $config:ident;
        $(#[$about_raw:meta])*
        $raw:ident: |$root:ident: $of:ty| $place:expr, $above:literal;
        $($heading:literal {$(
            $(#[doc = $doc:literal])*
            $name:ident $(<$value:ident $(, $variable:literal)?>)?: $type:ty = $default:expr $(, $check:expr)?;
        )*})*
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $config {$($(
            $(#[doc = $doc])*
            pub $name: $type,
        )*)*}

        $(#[$about_raw])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $raw {$($(
            $(#[doc = $doc])*
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $name: Option<<$type as $crate::config::SettingValue>::Raw>,
        )*)*}

        impl Default for $config {
            fn default() -> Self {
                Self {$($( $name: $default, )*)*}
            }
        }

        impl $config {
            /// The same as it is written, with every default: it resolves to this again.
            #[must_use]
            pub fn to_raw(&self) -> $raw {
                $raw {$($( $name: $crate::config::SettingValue::to_raw(&self.$name), )*)*}
            }
        }

        impl $raw {
            /// Each value by itself.
            fn read(&self) -> Result<$config, $crate::config::ConfigError> {
                let default = $config::default();
                Ok($config {$($(
                    $name: match &self.$name {
                        Some(raw) => {
                            let key = concat!($above, stringify!($name));
                            let value: $type = $crate::config::SettingValue::read(key, raw)?;
                            $( $check(&value).map_err(|reason| $crate::config::field(key, reason))?; )?
                            value
                        }
                        None => default.$name,
                    },
                )*)*})
            }

            /// Those that have flags.
            pub(crate) fn flags() -> Vec<$crate::config::Setting<$of>> {
                let mut settings = Vec::new();
                let default = $config::default().to_raw();
                $($(
                    // Unused if there is no flag.
                    let _help = $crate::config::first_paragraph(&[$($doc),*]);
                    $(
                        let _variable: Option<&'static str> = None;
                        $( let _variable = Some($variable); )?
                        settings.push($crate::config::Setting::<$of> {
                            key: concat!($above, stringify!($name)),
                            heading: $heading,
                            variable: _variable,
                            value_name: stringify!($value),
                            help: _help,
                            default: $crate::config::as_text(default.$name),
                            shape: <<$type as $crate::config::SettingValue>::Raw as $crate::config::FlagValue>::SHAPE,
                            set: |$root, values| {
                                $place.$name = Some($crate::config::FlagValue::parse(values)?);
                                Ok(())
                            },
                        });
                    )?
                )*)*
                settings
            }
        }
    };
}
