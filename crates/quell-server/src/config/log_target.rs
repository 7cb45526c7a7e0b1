//! Log target: the place to which decisions are written.

use std::fmt;
use std::path::{Path, PathBuf};

use quell_host::config::{TextValue, check_home};

/// Target to which decisions are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// To standard output.
    Stdout,
    /// To standard error.
    Stderr,
    /// To this file, at its end.
    File(PathBuf),
}

impl TextValue for LogTarget {
    /// Reads a path, or a name of standard output or standard error. Those are not opened: in a
    /// container they are pipes, which cannot be opened once more.
    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("write a file, or - for standard output".to_owned()),
            "-" | "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => Ok(Self::Stdout),
            "/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2" => Ok(Self::Stderr),
            file => check_home(Path::new(file)).map(|()| Self::File(PathBuf::from(file))),
        }
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("-"),
            Self::Stderr => f.write_str("/dev/stderr"),
            Self::File(file) => file.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_output_and_error_have_many_names() {
        for name in ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
            assert_eq!(LogTarget::from_text(name), Ok(LogTarget::Stdout));
        }
        for name in ["/dev/stderr", "/dev/fd/2", "/proc/self/fd/2"] {
            assert_eq!(LogTarget::from_text(name), Ok(LogTarget::Stderr));
        }
    }
}
