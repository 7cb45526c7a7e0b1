//! Password: what a person types, kept as a hash of Argon2id.
//!
//! People choose passwords that others can guess, so a hash of one has to be slow and large: 19 MiB and
//! two passes by default (OWASP, 2024). The file of credentials bounds neither, so the bounds are here.

use std::fmt;
use std::ops::RangeInclusive;

use argon2::password_hash::phc::{Decimal, Ident, Output, PasswordHash, Salt};
use argon2::password_hash::{PasswordHasher as _, PasswordVerifier as _};
use argon2::{Algorithm, Argon2, Version};
use serde::{Deserialize, Serialize};

/// Fewest characters of a password (NIST SP 800-63B asks for 15 or, beside something else, 8).
pub(super) const MIN_CHARACTERS: usize = 12;

/// Longest password, in bytes.
pub(super) const MAX_PASSWORD: usize = 1_024;

/// Memory of a hash, in KiB: from the least that OWASP recommends to what two logins at a time may take
/// of a server, 64 MiB each.
const MEMORY: RangeInclusive<Decimal> = 7_168..=65_536;

/// Passes over that memory, and lanes: a quarter of a second with the most memory.
const PASSES: RangeInclusive<Decimal> = 1..=4;
const LANES: RangeInclusive<Decimal> = 1..=4;

/// Bytes of a hash.
const OUTPUT: RangeInclusive<usize> = 16..=64;

/// The hash of a password, as `$argon2id$v=19$m=19456,t=2,p=1$SALT$HASH`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HashedPassword(PasswordHash);

impl HashedPassword {
    /// Hashes a password with a salt of 128 random bits.
    pub(super) fn new(password: &str) -> Result<Self, String> {
        let mut salt = [0; Salt::RECOMMENDED_LENGTH];
        getrandom::fill(&mut salt).map_err(|error| error.to_string())?;
        let hash = Argon2::default().hash_password_with_salt(password.as_bytes(), &salt);
        Ok(Self(hash.map_err(|error| error.to_string())?))
    }

    /// Returns true if it is that of `password`. Takes as long as its parameters say, so not for a thread
    /// that answers calls.
    pub fn verify(&self, password: &[u8]) -> bool {
        Argon2::default().verify_password(password, &self.0).is_ok()
    }

    /// Checks that the hash is of Argon2id, with parameters that a login may cost.
    fn check(&self) -> Result<(), String> {
        let Self(hash) = self;
        let is_known = hash.algorithm == Algorithm::Argon2id.ident()
            && hash.version == Some(Version::V0x13.into());
        let output = hash.hash.as_ref().map_or(0, Output::len);
        if !is_known || hash.salt.is_none() || !OUTPUT.contains(&output) {
            return Err(NO_HASH.to_owned());
        }
        for (name, bounds, unit) in [
            ("m", &MEMORY, " KiB"),
            ("t", &PASSES, " passes"),
            ("p", &LANES, " lanes"),
        ] {
            let value = hash
                .params
                .get_decimal(Ident::new(name).map_err(|_| NO_HASH)?);
            if value.is_none_or(|value| !bounds.contains(&value)) {
                let (least, most) = (bounds.start(), bounds.end());
                return Err(format!(
                    "the password's hash needs {name} from {least} to {most}{unit}, so that a login costs an \
                     attacker enough and this server not too much: make one with `quell token password`"
                ));
            }
        }
        match hash.params.iter().count() {
            3 => Ok(()),
            _ => Err(NO_HASH.to_owned()),
        }
    }
}

/// Message about a text that is no hash. It does not repeat it: somebody may have written a password.
const NO_HASH: &str = "this is not the hash of a password: write what `quell token password` prints, which \
    begins with $argon2id$v=19$";

impl TryFrom<String> for HashedPassword {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let hash = Self(PasswordHash::new(&text).map_err(|_| NO_HASH.to_owned())?);
        hash.check()?;
        Ok(hash)
    }
}

impl From<HashedPassword> for String {
    fn from(HashedPassword(hash): HashedPassword) -> Self {
        hash.to_string()
    }
}

/// Shows nothing that passwords can be tried on.
impl fmt::Debug for HashedPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashedPassword")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `correct horse battery staple`, by the reference implementation (argon2-cffi).
    const REFERENCE: &str = "$argon2id$v=19$m=8192,t=2,p=4$dZSIyOs4CBSEVRzDE0LrEQ$s/DENm6TBiDtdQ46OTP5hqNPv+rq3UjdWigyYOBrwhs";

    fn read(text: &str) -> Result<HashedPassword, String> {
        HashedPassword::try_from(text.to_owned())
    }

    #[test]
    fn a_hash_of_another_implementation_is_verified() {
        let hash = read(REFERENCE).unwrap();
        assert!(hash.verify(b"correct horse battery staple"));
        assert!(!hash.verify(b"correct horse battery stapl"));
        assert_eq!(String::from(hash), REFERENCE);
    }

    #[test]
    fn what_is_hashed_can_be_read_and_each_hash_has_a_salt_of_its_own() {
        let [a, b] = [(); 2].map(|()| HashedPassword::new("correct horse").unwrap());
        assert_ne!(a, b);
        let text = String::from(a);
        assert!(
            text.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"),
            "{text}"
        );
        let a = read(&text).unwrap();
        assert!(a.verify(b"correct horse") && !a.verify(b"") && !a.verify(b"Correct horse"));
        assert_eq!(format!("{a:?}"), "HashedPassword");
    }

    #[test]
    fn hashes_that_cost_too_much_or_too_little_are_refused_and_never_repeated() {
        let end = "$c2FsdHNhbHRzYWx0c2FsdA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        let id = |params: &str| format!("$argon2id$v=19${params}{end}");
        for (text, told) in [
            (id("m=7168,t=1,p=1"), None),
            (id("m=65536,t=4,p=4"), None),
            (id("m=65537,t=1,p=1"), Some("m from 7168 to 65536 KiB")),
            (id("m=4096,t=3,p=1"), Some("m from 7168 to 65536 KiB")),
            (id("m=4294967295,t=1,p=1"), Some("m from")),
            (id("m=19456,t=5,p=1"), Some("t from 1 to 4 passes")),
            (id("m=19456,t=2,p=9"), Some("p from 1 to 4 lanes")),
            (id("m=19456,t=2"), Some("p from")),
            (
                id("m=19456,t=2,p=1,data=AAAA"),
                Some("quell token password"),
            ),
            (
                id("m=19456,t=2,p=1").replace("id", "i"),
                Some("not the hash"),
            ),
            (
                id("m=19456,t=2,p=1").replace("id", "d"),
                Some("not the hash"),
            ),
            (
                id("m=19456,t=2,p=1").replace("19$", "16$"),
                Some("not the hash"),
            ),
            (
                id("m=19456,t=2,p=1").replace("$v=19", ""),
                Some("not the hash"),
            ),
            (
                "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ".into(),
                Some("not the hash"),
            ),
            (
                "$2b$12$R9h/cIPz0gi.URNNX3kh2OPST9/PgBkqquzi".into(),
                Some("not the hash"),
            ),
            ("hunter2-hunter2".into(), Some("not the hash")),
            (String::new(), Some("not the hash")),
        ] {
            let said = read(&text).err();
            assert_eq!(said.is_some(), told.is_some(), "{text}: {said:?}");
            let (said, told) = (said.unwrap_or_default(), told.unwrap_or_default());
            assert!(said.contains(told), "{text}: {said}");
            assert!(text.is_empty() || !said.contains(&text), "{said}");
        }
    }
}
