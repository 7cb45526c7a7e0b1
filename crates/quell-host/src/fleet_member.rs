//! Fleet member: the number of a node, as people write it.

use std::fmt;
use std::str::FromStr;

use quell_fleet::terms::{Members, member_number};

/// The number of a node, as it was written: digits, or a name that ends with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetMember {
    text: String,
    number: u32,
}

impl FleetMember {
    /// The number.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }
}

impl FromStr for FleetMember {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match member_number(text) {
            Some(number) => Ok(Self {
                text: text.to_owned(),
                number,
            }),
            None => Err(format!(
                "`{text}` has no number at its end: write one that no other node has, such as 3, or a name \
                 such as quell-3"
            )),
        }
    }
}

impl fmt::Display for FleetMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The number in `text`: digits, or a name that ends with them.
///
/// # Errors
/// A text that says what to write instead.
pub fn read_number(text: &str) -> Result<u32, String> {
    text.parse::<FleetMember>().map(|member| member.number())
}

/// Members as they are written, such as `node-7` or `1..20`, if they are some.
///
/// # Errors
/// A text that says what to write instead.
pub fn read_members(text: &str) -> Result<String, String> {
    text.parse::<Members>().map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_a_number_or_a_name_with_one() {
        for (text, number) in [("3", 3), ("quell-12", 12), ("a1b02", 2)] {
            let member: FleetMember = text.parse().unwrap();
            assert_eq!(
                (member.number(), member.to_string()),
                (number, text.to_owned())
            );
        }
        for text in ["", "quell", "4294967296", "3a"] {
            assert!(text.parse::<FleetMember>().is_err(), "{text}");
        }
    }
}
