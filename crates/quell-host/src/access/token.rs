//! Token: a secret that a program shows, its SHA-256, which a server keeps, and its name.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// Longest name of a token, in bytes.
const MAX_NAME: usize = 64;

/// Prefix of a token, so that scanners for leaked secrets and people recognise it.
const PREFIX: &str = "quell_";

/// The name of a token, a certificate or a user: 1 to 64 letters, digits, `-`, `_`, `.` and `@`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TokenName(Box<str>);

impl TokenName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl TryFrom<String> for TokenName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<TokenName> for String {
    fn from(name: TokenName) -> Self {
        name.0.into()
    }
}

impl FromStr for TokenName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
        if text.is_empty() || text.len() > MAX_NAME || !text.bytes().all(is_of_name) {
            return Err(format!(
                "a name has 1 to {MAX_NAME} letters, digits, - _ . and @, such as checkout"
            ));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for TokenName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The SHA-256 of a token, written as 64 hexadecimal digits. Digests are compared in constant time.
#[derive(Clone, Copy, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    pub fn new(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }
}

impl PartialEq for TokenDigest {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Hash for TokenDigest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl TryFrom<String> for TokenDigest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digits: Option<Vec<u8>> = text
            .chars()
            .map(|digit| {
                digit
                    .to_digit(16)
                    .and_then(|digit| u8::try_from(digit).ok())
            })
            .collect();
        let bytes: Option<Vec<u8>> = digits.map(|digits| {
            let pairs = digits.chunks(2);
            pairs
                .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit))
                .collect()
        });
        let bytes = bytes.filter(|_| text.len() == 64);
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or_else(|| {
            "this is not a SHA-256: write its 64 hexadecimal digits, as `quell token new` prints them \
             (printf %s TOKEN | sha256sum makes them too)"
                .to_owned()
        })
    }
}

impl From<TokenDigest> for String {
    fn from(digest: TokenDigest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A token that was just made: the only time that its text is known.
pub struct NewToken(String);

impl NewToken {
    /// Makes a token of 256 random bits of the system.
    ///
    /// # Errors
    /// If the system has no random numbers to give.
    pub fn generate() -> io::Result<Self> {
        let mut bits = [0; 32];
        getrandom::fill(&mut bits).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self(PREFIX.to_owned() + &URL_SAFE_NO_PAD.encode(bits)))
    }

    /// The token: what its bearer sends.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Digest a server keeps.
    #[must_use]
    pub fn digest(&self) -> TokenDigest {
        TokenDigest::new(self.0.as_bytes())
    }
}

/// Shows nothing of the token.
impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewToken")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_256_bits_with_a_prefix_and_differ() {
        let (a, b) = (NewToken::generate().unwrap(), NewToken::generate().unwrap());
        assert_ne!(a.text(), b.text());
        assert_eq!(a.text().len(), PREFIX.len() + 43);
        assert!(!format!("{a:?}").contains(a.text()));
    }

    #[test]
    fn a_digest_is_that_of_sha256sum() {
        let sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        assert_eq!(TokenDigest::new(b"test").to_string(), sha256);
    }
}
