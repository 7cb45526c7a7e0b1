//! Name: what a coordinator writes into the leader's key, for members and operators to find it.

use std::fmt;
use std::str::FromStr;

use quell_fleet::agent::{CoordinatorUrl, NotNamed};
use quell_fleet::wire::MAX_URL;

/// URLs of a coordinator, as others reach it. It is written as its parts with spaces between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorName {
    /// Address for members: an `http` or `https` URL.
    pub url: String,
    /// URL of its API for operators, if it has one.
    pub admin: Option<String>,
    /// Distinguishes this start of the process from every other.
    pub start: u64,
}

impl CoordinatorName {
    /// Checks a URL under which others are to reach a coordinator.
    ///
    /// # Errors
    /// A text that says what to write instead.
    pub fn check_url(url: &str) -> Result<(), String> {
        let rest = url
            .strip_prefix("http://")
            .or_else(|| url.strip_prefix("https://"));
        let is_plain = url.bytes().all(|byte| byte.is_ascii_graphic());
        match rest {
            Some(rest) if !rest.is_empty() && is_plain && url.len() <= MAX_URL => Ok(()),
            _ => Err(format!(
                "this is not a URL: write one of at most {MAX_URL} bytes, such as http://10.0.0.1:7600"
            )),
        }
    }
}

/// Checks whether credentials meant for the coordinators `named` may be presented to the leader at `url`, which one
/// of them names. `has_authority` is true if an authority that vouches for coordinators was given.
///
/// # Errors
/// Why not, and what to do.
pub fn check_leader(url: &str, named: &[String], has_authority: bool) -> Result<(), String> {
    let named = named.iter().filter_map(|url| url.parse().ok());
    let named: Vec<CoordinatorUrl> = named.collect();
    let leader: CoordinatorUrl = url.parse()?;
    let checked = leader.check_shown(&named, has_authority);
    checked.map_err(|why| match why {
        NotNamed::Host => format!(
            "the leader is {leader}, and your token is not shown to a host that you did not name: add it to \
             --url, or write the authority of the coordinators into --ca"
        ),
        NotNamed::Open => format!(
            "the leader is {leader}, and your token is shown in the clear only to what you name: start \
             coordinators with an --admin-url of https, or add it to --url"
        ),
    })
}

impl fmt::Display for CoordinatorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let admin = self.admin.as_deref().unwrap_or("-");
        write!(f, "{} {admin} {:016x}", self.url, self.start)
    }
}

impl FromStr for CoordinatorName {
    type Err = String;

    /// Reads what [`fmt::Display`] writes. Another program may have written the key, so nothing is taken
    /// from it that is not a URL.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(' ');
        let (Some(url), Some(admin), Some(start), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err("this is not the name of a coordinator".to_owned());
        };
        let admin = Some(admin).filter(|admin| *admin != "-");
        Self::check_url(url)?;
        admin.map_or(Ok(()), Self::check_url)?;
        let start = u64::from_str_radix(start, 16).map_err(|error| error.to_string())?;
        Ok(Self {
            url: url.to_owned(),
            admin: admin.map(str::to_owned),
            start,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        for admin in [None, Some("http://10.0.0.1:7601".to_owned())] {
            let name = CoordinatorName {
                url: "https://a.internal:7600".to_owned(),
                admin,
                start: 0xfe,
            };
            assert_eq!(name.to_string().parse(), Ok(name));
        }
    }

    #[test]
    fn a_token_goes_to_a_leader_that_was_named_or_is_vouched_for() {
        let named = ["https://a.internal:7601".to_owned(), "no url".to_owned()];
        let shown = |url, has_authority| check_leader(url, &named, has_authority);
        assert_eq!(shown("https://a.internal:7601", false), Ok(()));
        assert_eq!(shown("https://b.internal:7601", true), Ok(()));
        let why = shown("https://b.internal:7601", false).unwrap_err();
        assert!(why.contains("add it to --url"), "{why}");
        let why = shown("http://b.internal:7601", true).unwrap_err();
        assert!(why.contains("in the clear"), "{why}");
        assert!(shown("ftp://a.internal", true).is_err());
    }

    #[test]
    fn nothing_else_is_a_name() {
        for text in [
            "",
            "a",
            "http://a - 1 2",
            "ftp://a - 1",
            "http:// - 1",
            "http://a - x",
            "http://a b 1",
            "http://a\n - 1",
        ] {
            assert!(text.parse::<CoordinatorName>().is_err(), "{text}");
        }
        let long = format!("http://{}", "a".repeat(MAX_URL));
        assert!(CoordinatorName::check_url(&long).is_err());
    }
}
