//! Credentials: the tokens that a server knows, by their SHA-256, the certificates, by a subject, and the
//! users, by their name.
//!
//! A token is 256 random bits, so nobody finds one by trying, neither at a server nor from its SHA-256: a
//! slow hash would protect nothing. Somebody who reads the file can ask nothing with it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::certificate::{ClientCertificate, Subject};
use super::entries::{CertificateEntry, CredentialsFile, TokenEntry, UserEntry};
use super::grant::{Grant, Proof};
use super::password::MAX_PASSWORD;
use super::role::Role;
use super::token::{TokenDigest, TokenName};
use crate::config::{self, ConfigError};
use crate::secret_source::SecretSource;

/// The longest text that is hashed, in bytes, so that a stranger cannot make the server hash megabytes.
const MAX_TOKEN: usize = 256;

/// Tokens, certificates and users, by what shows them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Credentials {
    tokens: HashMap<TokenDigest, Arc<Grant>>,
    certificates: HashMap<Subject, Arc<Grant>>,
    users: HashMap<TokenName, Arc<Grant>>,
    /// The first user, whose password is checked for names that nobody has.
    first_user: Option<Arc<Grant>>,
}

/// Reason why credentials cannot be used. The text says where the mistake is and what to write; it never
/// contains a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// The file cannot be read.
    #[error("cannot read the credentials in {}", path.display())]
    Unreadable {
        /// The file.
        path: Box<Path>,
        /// The system's error.
        source: io::Error,
    },
    /// The environment variable is not set, or not UTF-8.
    #[error(
        "the environment variable {0} has no credentials: set it, or write another --credentials"
    )]
    NoVariable(String),
    /// The text has a mistake.
    #[error(transparent)]
    Mistake(#[from] ConfigError),
}

impl Credentials {
    /// Reads those of a source.
    ///
    /// # Errors
    /// [`CredentialsError`].
    pub(super) fn read(source: &SecretSource) -> Result<Self, CredentialsError> {
        let text = match source {
            SecretSource::File(path) => {
                std::fs::read_to_string(path).map_err(|source| CredentialsError::Unreadable {
                    path: path.clone().into(),
                    source,
                })?
            }
            SecretSource::Variable(name) => {
                std::env::var(name).map_err(|_| CredentialsError::NoVariable(name.clone()))?
            }
        };
        Ok(Self::parse(&source.to_string(), &text)?)
    }

    /// Reads a file's text; `name` stands for the file in errors.
    ///
    /// # Errors
    /// [`ConfigError::File`] with line and column.
    pub(super) fn parse(name: &str, text: &str) -> Result<Self, ConfigError> {
        let file: CredentialsFile = config::parse(name, text)?;
        let mistake = |reason: String| ConfigError::File {
            file: name.to_owned(),
            reason,
        };
        let tokens = file.tokens.iter().map(TokenEntry::grant);
        let certificates = file.certificates.iter().map(CertificateEntry::grant);
        let users = file.users.iter().map(UserEntry::grant);
        let mut known = Self::default();
        let mut names = HashSet::new();
        for grant in tokens.chain(certificates).chain(users) {
            let grant = Arc::new(grant.map_err(mistake)?);
            if !names.insert(grant.name.clone()) {
                let name = &grant.name;
                let reason = format!("two entries have the name `{name}`: give each its own");
                return Err(mistake(reason));
            }
            let (before, field) = match &grant.proof {
                Proof::Token(digest) => {
                    let grant = Arc::clone(&grant);
                    (known.tokens.insert(*digest, grant), "sha256")
                }
                Proof::Certificate(san) => {
                    let grant = Arc::clone(&grant);
                    (known.certificates.insert(san.clone(), grant), "san")
                }
                Proof::Password(_) => {
                    let grant = Arc::clone(&grant);
                    known.first_user.get_or_insert_with(|| Arc::clone(&grant));
                    (known.users.insert(grant.name.clone(), grant), "name")
                }
            };
            if before.is_some() {
                let reason = format!("{grant} has the {field} of another: each has its own");
                return Err(mistake(reason));
            }
        }
        Ok(known)
    }

    /// Returns true if any certificate has an entry.
    pub(super) fn has_certificates(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// Returns true if any entry has this role.
    pub(super) fn has_role(&self, role: Role) -> bool {
        let programs = self.tokens.values().chain(self.certificates.values());
        programs
            .chain(self.users.values())
            .any(|grant| grant.has(role))
    }

    /// Returns true if any user has an entry.
    pub(super) fn has_users(&self) -> bool {
        !self.users.is_empty()
    }

    /// The user of this name.
    pub(super) fn user(&self, name: &TokenName) -> Option<&Arc<Grant>> {
        self.users.get(name)
    }

    /// Grant of the user of this name, if `password` is theirs. A name that nobody has takes as long as
    /// the first user's.
    pub(super) fn check_password(&self, name: &TokenName, password: &[u8]) -> Option<Arc<Grant>> {
        let checked = self.user_to_check(name)?;
        let Proof::Password(hash) = &checked.proof else {
            return None;
        };
        let is_right = password.len() <= MAX_PASSWORD && hash.verify(password);
        self.users.get(name).filter(|_| is_right).cloned()
    }

    /// The user whose hash is computed for this name.
    fn user_to_check(&self, name: &TokenName) -> Option<&Arc<Grant>> {
        self.users.get(name).or(self.first_user.as_ref())
    }

    /// Present grant of the token of `grant`, if it is still known by its name. Not for
    /// certificates and passwords, which are shown again.
    pub(super) fn renew(&self, grant: &Grant) -> Option<Arc<Grant>> {
        let Proof::Token(digest) = &grant.proof else {
            return None;
        };
        let renewed = self.tokens.get(digest)?;
        (renewed.name == grant.name).then(|| Arc::clone(renewed))
    }

    /// Grant of a certificate: by the first of its subjects that has an entry.
    pub(super) fn of_certificate(&self, certificate: &ClientCertificate) -> Option<Arc<Grant>> {
        let mut subjects = certificate.subjects.iter();
        let known = subjects.find_map(|subject| self.certificates.get(subject));
        known.cloned()
    }

    /// Grant of a token, if it is known.
    pub(super) fn find(&self, token: &[u8]) -> Option<Arc<Grant>> {
        if token.len() > MAX_TOKEN {
            return None;
        }
        self.tokens.get(&TokenDigest::new(token)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn mistake(text: &str) -> String {
        Credentials::parse("credentials.toml", text)
            .unwrap_err()
            .to_string()
    }

    /// A variable that is set, and has no credentials: what it has is not shown.
    #[test]
    fn the_text_of_a_variable_is_not_shown() {
        let told = |name: &str| {
            let source = SecretSource::Variable(name.to_owned());
            Credentials::read(&source).unwrap_err().to_string()
        };
        let value = std::env::var("PATH").unwrap();
        let set = told("PATH");
        assert!(
            set.starts_with("env:PATH:1") && !set.contains(&value),
            "{set}"
        );
        assert!(told("QUELL_NOT_SET").contains("QUELL_NOT_SET"));
    }

    #[test]
    fn mistakes_are_told_with_their_place_and_what_to_write() {
        let entry = |rest: &str| format!("[[tokens]]\nname = 'a'\nsha256 = '{DIGEST}'\n{rest}");
        let certificate = |name: &str, san: &str| {
            format!("[[certificates]]\nname = '{name}'\nsan = '{san}'\nroles = ['ask']\n")
        };
        for (text, told) in [
            ("[[token]]\nname = 'a'".to_owned(), "did you mean `tokens`"),
            ("[[tokens]]\nname = ''".to_owned(), "1 to 64 letters"),
            (
                "[[tokens]]\nname = 'a'\nsha256 = 'quell_x'\nroles = []".to_owned(),
                "64 hexadecimal",
            ),
            (entry("roles = ['boss']"), "unknown variant `boss`"),
            (entry("roles = []"), "roles = [\"ask\"]"),
            (
                entry("roles = ['ask']\ndomains = []"),
                "leave `domains` out",
            ),
            (
                entry("roles = ['ask']\n") + &entry("roles = ['ask']"),
                "two entries have the name `a`",
            ),
            (
                entry("roles = ['ask']\n") + &entry("roles = ['ask']").replace("'a'", "'b'"),
                "has the sha256 of another",
            ),
            (entry("role = 'ask'"), "did you mean `roles`"),
            (
                certificate("a", "CN=a"),
                "`CN=a` is neither a DNS name nor a URI: write one of the certificate's subject",
            ),
            (
                certificate("b", "a.internal") + &certificate("c", "A.internal"),
                "the certificate `c` has the san of another",
            ),
            (
                entry("roles = ['ask']\n") + &certificate("a", "a.internal"),
                "two entries have the name `a`",
            ),
            (
                certificate("a", "a.internal").replace("['ask']", "[]"),
                "the certificate `a` has no role",
            ),
            ("tokens = 3".to_owned(), "credentials.toml:1:10"),
        ] {
            let said = mistake(&text);
            assert!(
                said.contains(told) && said.starts_with("credentials.toml"),
                "{text}: {said}"
            );
        }
    }

    /// So that nobody learns from the time of an answer which names there are.
    #[test]
    fn a_name_that_nobody_has_costs_a_hash_and_never_fits() {
        let entry = |name: &str, password: &str| {
            let name = name.parse().unwrap();
            crate::access::password_entry(name, password, vec![Role::Read], None).unwrap()
        };
        let text = entry("ada", "the first password") + &entry("bob", "another password");
        let known = Credentials::parse("f", &text).unwrap();
        let check = |name: &str, password: &str| {
            let user = known.check_password(&name.parse().unwrap(), password.as_bytes());
            user.map(|user| user.name.to_string())
        };
        assert_eq!(check("ada", "the first password").as_deref(), Some("ada"));
        assert_eq!(check("bob", "another password").as_deref(), Some("bob"));
        for (name, checked) in [("ada", "ada"), ("bob", "bob"), ("eve", "ada")] {
            let user = known.user_to_check(&name.parse().unwrap()).unwrap();
            assert_eq!(user.name.as_str(), checked);
        }
        // The checked password is right, and the name is nobody's all the same.
        assert_eq!(check("eve", "the first password"), None);
        assert_eq!(check("bob", "the first password"), None);
        let none = Credentials::parse("f", "").unwrap();
        assert!(none.check_password(&"ada".parse().unwrap(), b"x").is_none());
    }

    #[test]
    fn a_megabyte_is_not_hashed() {
        let long = vec![b'x'; MAX_TOKEN + 1];
        let digest = TokenDigest::new(&long);
        let text = format!("[[tokens]]\nname = 'a'\nsha256 = '{digest}'\nroles = ['ask']");
        assert!(
            Credentials::parse("f", &text)
                .unwrap()
                .find(&long)
                .is_none()
        );
    }
}
