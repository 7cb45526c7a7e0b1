//! Credentials: the tokens that a server knows, by their SHA-256, the certificates, by a subject, and the
//! users, by their name.
//!
//! A token is 256 random bits, so nobody finds one by trying, neither at a server nor from its SHA-256: a
//! slow hash would protect nothing. Somebody who reads the file can ask nothing with it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use quell_core::account::Account;
use quell_fleet::terms::{Members, NodeTerms};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::certificate::{ClientCertificate, Subject};
use super::password::{HashedPassword, MAX_PASSWORD};
use crate::config::{self, ConfigError};
use crate::secret_source::SecretSource;

/// The longest text that is hashed, in bytes, so that a stranger cannot make the server hash megabytes.
const MAX_TOKEN: usize = 256;

/// Longest name of a token, in bytes.
const MAX_NAME: usize = 64;

/// Prefix of a token, so that scanners for leaked secrets and people recognise it.
const PREFIX: &str = "quell_";

/// Role of a caller. Roles do not include each other: a token lists all that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// Ask limits and charge them: acquire, peek, authorize, `CL.THROTTLE`, reserve, and what ends a hold.
    Ask,
    /// Read rules, bans and what the server says of itself.
    Read,
    /// Change states by hand: set and lift bans, forgive keys.
    Admin,
    /// Read `/metrics`, which are those of all domains.
    Metrics,
    /// Be a member of a fleet. On the listeners of a server it opens nothing: a coordinator asks
    /// for it.
    Node,
    /// Name people to the console, by the header of `--console-user-header`. It opens nothing by itself.
    Proxy,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 6] = [
        Self::Ask,
        Self::Read,
        Self::Admin,
        Self::Metrics,
        Self::Node,
        Self::Proxy,
    ];

    /// Its name in a file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Read => "read",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
            Self::Node => "node",
            Self::Proxy => "proxy",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let role = Self::ALL.into_iter().find(|role| role.name() == text);
        role.ok_or_else(|| {
            format!("`{text}` is no role: write ask, read, admin, metrics, node or proxy")
        })
    }
}

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

    /// Its entry in a file of credentials; no domains mean all.
    ///
    /// # Errors
    /// Names the fix if nobody could use such a token.
    pub fn entry(
        &self,
        name: TokenName,
        roles: Vec<Role>,
        domains: Option<Vec<String>>,
    ) -> Result<String, String> {
        self.entry_of_node(name, roles, domains, None)
    }

    /// The same of a token with the role `node`, which says what its bearer may be in a fleet.
    ///
    /// # Errors
    /// As [`NewToken::entry`].
    pub fn entry_of_node(
        &self,
        name: TokenName,
        roles: Vec<Role>,
        domains: Option<Vec<String>>,
        node: Option<NodeEntry>,
    ) -> Result<String, String> {
        let entry = TokenEntry {
            name,
            sha256: self.digest(),
            roles,
            domains,
            node,
        };
        entry.grant()?;
        let file = File {
            tokens: vec![entry],
            ..File::default()
        };
        toml::to_string(&file).map_err(|error| error.to_string())
    }
}

/// The entry of a user in a file of credentials.
pub(super) fn user_entry(
    name: TokenName,
    password: HashedPassword,
    roles: Vec<Role>,
    domains: Option<Vec<String>>,
) -> Result<String, String> {
    let entry = UserEntry {
        name,
        password,
        roles,
        domains,
    };
    entry.grant()?;
    let file = File {
        users: vec![entry],
        ..File::default()
    };
    toml::to_string(&file).map_err(|error| error.to_string())
}

/// Shows nothing of the token.
impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewToken")
    }
}

/// A file of credentials.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tokens: Vec<TokenEntry>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    certificates: Vec<CertificateEntry>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    users: Vec<UserEntry>,
}

/// A token in a file of credentials.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: TokenName,
    sha256: TokenDigest,
    roles: Vec<Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    domains: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<NodeEntry>,
}

/// Terms of a bearer with the role `node` in a fleet, as written.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct NodeEntry {
    /// The members that it may be, such as `node-7` or `1..20`; without the field any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<String>>,
    /// The largest weight that it may name; 1 without the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// The groups that it may name; without the field any that rules name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
}

impl NodeEntry {
    /// An entry that says this; `None` if it says nothing.
    #[must_use]
    pub fn new(
        members: Option<Vec<String>>,
        weight: Option<u32>,
        groups: Option<Vec<String>>,
    ) -> Option<Self> {
        let says_something = members.is_some() || weight.is_some() || groups.is_some();
        says_something.then_some(Self {
            members,
            weight,
            groups,
        })
    }

    fn terms(&self) -> Result<NodeTerms, String> {
        let parse = |members: &Vec<String>| members.iter().map(|text| text.parse()).collect();
        let members: Option<Result<Vec<Members>, String>> = self.members.as_ref().map(parse);
        let members = members.transpose()?;
        if members.as_ref().is_some_and(Vec::is_empty) {
            return Err("`members` has none: name one, or leave it out for any".to_owned());
        }
        if self.weight == Some(0) {
            return Err("a `weight` is at least 1".to_owned());
        }
        let groups = self.groups.as_ref();
        let groups = groups.map(|groups| groups.iter().map(|group| group.as_str().into()));
        Ok(NodeTerms {
            members: members.map(Into::into),
            weight: self.weight.unwrap_or(NodeTerms::WEIGHT),
            groups: groups.map(Iterator::collect),
        })
    }
}

/// A certificate of clients in a file of credentials.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CertificateEntry {
    name: TokenName,
    san: Subject,
    roles: Vec<Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    domains: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<NodeEntry>,
}

/// A person in a file of credentials, who logs in with a password.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UserEntry {
    name: TokenName,
    password: HashedPassword,
    roles: Vec<Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    domains: Option<Vec<String>>,
}

impl TokenEntry {
    fn grant(&self) -> Result<Grant, String> {
        let proof = Proof::Token(self.sha256);
        let grant = Grant::new(&self.name, proof, &self.roles, self.domains.as_deref())?;
        grant.with_node(self.node.as_ref())
    }
}

impl CertificateEntry {
    fn grant(&self) -> Result<Grant, String> {
        let proof = Proof::Certificate(self.san.clone());
        let grant = Grant::new(&self.name, proof, &self.roles, self.domains.as_deref())?;
        grant.with_node(self.node.as_ref())
    }
}

impl UserEntry {
    fn grant(&self) -> Result<Grant, String> {
        let proof = Proof::Password(Box::new(self.password.clone()));
        let grant = Grant::new(&self.name, proof, &self.roles, self.domains.as_deref())?;
        let mut of_programs = [Role::Ask, Role::Node, Role::Proxy].into_iter();
        match of_programs.find(|role| grant.has(*role)) {
            Some(role) => Err(format!(
                "{grant} has the role `{role}`, which programs have, and a password takes too long to check \
                 on their way: leave `{role}` out here, and make a token with `quell token new --role {role}`"
            )),
            None => Ok(grant),
        }
    }
}

/// Proof of a caller.
#[derive(Debug, PartialEq, Eq)]
enum Proof {
    Token(TokenDigest),
    Certificate(Subject),
    Password(Box<HashedPassword>),
}

/// Rights of the bearer of a token, a certificate or a password.
#[derive(Debug, PartialEq, Eq)]
pub struct Grant {
    /// The name of the entry.
    pub name: TokenName,
    account: Account,
    proof: Proof,
    roles: Box<[Role]>,
    /// `None`: all.
    domains: Option<Box<[Box<str>]>>,
    node: NodeTerms,
}

/// The account of a name, the same after each reload.
fn account_of(name: &TokenName) -> Account {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    Account::new(hasher.finish().max(1))
}

impl Grant {
    fn new(
        name: &TokenName,
        proof: Proof,
        roles: &[Role],
        domains: Option<&[String]>,
    ) -> Result<Self, String> {
        let domains = domains.map(|domains| domains.iter().map(|domain| (**domain).into()));
        let grant = Self {
            name: name.clone(),
            account: account_of(name),
            proof,
            roles: roles.into(),
            domains: domains.map(Iterator::collect),
            node: NodeTerms::default(),
        };
        if grant.roles.is_empty() {
            return Err(format!(
                "{grant} has no role, so nobody could use it: write roles = [\"ask\"]"
            ));
        }
        if grant
            .domains
            .as_ref()
            .is_some_and(|domains| domains.is_empty())
        {
            return Err(format!(
                "{grant} has no domain, so nobody could use it: name one, or leave `domains` out for all"
            ));
        }
        Ok(grant)
    }

    /// The same, which may be in a fleet what its entry says.
    fn with_node(self, entry: Option<&NodeEntry>) -> Result<Self, String> {
        let Some(entry) = entry else {
            return Ok(self);
        };
        if !self.has(Role::Node) {
            return Err(format!(
                "{self} says which node it is for, and does not have the role `node`: write roles = \
                 [\"node\"], or leave `node` out"
            ));
        }
        let node = entry.terms().map_err(|why| format!("{self}: {why}"))?;
        Ok(Self { node, ..self })
    }

    /// Terms of a bearer with the role `node` in a fleet.
    #[must_use]
    pub const fn node(&self) -> &NodeTerms {
        &self.node
    }

    /// The name of its entry.
    #[must_use]
    pub const fn name(&self) -> &TokenName {
        &self.name
    }

    /// Whose part of scarce places the bearer's calls take up.
    #[must_use]
    pub const fn account(&self) -> Account {
        self.account
    }

    /// Whether its entry has this role.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    /// Whether it is for all domains.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.domains.is_none()
    }

    /// Whether it is for this domain.
    #[must_use]
    pub fn reaches(&self, domain: &str) -> bool {
        let domains = self.domains.as_ref();
        domains.is_none_or(|domains| domains.iter().any(|known| **known == *domain))
    }
}

impl Grant {
    /// A digest that changes when the password does; `None` for who has none. Nobody finds a password by
    /// it who does not have the credentials.
    pub fn password_mark(&self) -> Option<String> {
        Some(self.password_digest(&[])?.to_string())
    }

    /// A digest of a password and its user's salt; `None` for who has none.
    pub fn password_digest(&self, password: &[u8]) -> Option<TokenDigest> {
        let Proof::Password(hash) = &self.proof else {
            return None;
        };
        let mut salted = String::from((**hash).clone()).into_bytes();
        salted.push(0);
        salted.extend_from_slice(password);
        Some(TokenDigest::new(&salted))
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.proof {
            Proof::Token(_) => "token",
            Proof::Certificate(_) => "certificate",
            Proof::Password(_) => "user",
        };
        write!(f, "the {kind} `{}`", self.name)
    }
}

/// Tokens, certificates and users, by what shows them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Credentials {
    tokens: HashMap<TokenDigest, Arc<Grant>>,
    certificates: HashMap<Subject, Arc<Grant>>,
    users: HashMap<TokenName, Arc<Grant>>,
    /// The first user, whose password is checked for names that nobody has.
    first_user: Option<Arc<Grant>>,
}

/// Why credentials cannot be used. The text says where the mistake is and what to write; it never
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
        let file: File = config::parse(name, text)?;
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

    /// Whether any certificate has an entry.
    pub(super) fn has_certificates(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// Whether any entry has this role.
    pub(super) fn has_role(&self, role: Role) -> bool {
        let programs = self.tokens.values().chain(self.certificates.values());
        programs
            .chain(self.users.values())
            .any(|grant| grant.has(role))
    }

    /// Whether any user has an entry.
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
                "`CN=a` is no DNS name and no URI: write one of the certificate's subject",
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

    #[test]
    fn what_is_made_can_be_read() {
        let token = NewToken::generate().unwrap();
        let name: TokenName = "checkout".parse().unwrap();
        let domains = Some(vec!["shop".to_owned()]);
        let text = token.entry(name.clone(), vec![Role::Ask], domains).unwrap();
        assert!(!text.contains(token.text()));
        let credentials = Credentials::parse("f", &text).unwrap();
        let grant = credentials.find(token.text().as_bytes()).unwrap();
        assert_eq!(grant.name, name);
        assert!(grant.has(Role::Ask) && !grant.has(Role::Read));
        assert!(grant.reaches("shop") && !grant.reaches("bank"));
        assert!(
            NewToken::generate()
                .unwrap()
                .entry(name, Vec::new(), None)
                .is_err()
        );
    }

    #[test]
    fn a_token_of_a_node_says_what_it_may_be() {
        let token = NewToken::generate().unwrap();
        let entry = |roles: &[Role], node: NodeEntry| {
            token.entry_of_node("node-7".parse().unwrap(), roles.to_vec(), None, Some(node))
        };
        let read = |text: &str| {
            let credentials = Credentials::parse("f", text).unwrap();
            let grant = credentials.find(token.text().as_bytes()).unwrap();
            grant.node().clone()
        };
        let node = NodeEntry {
            members: Some(vec!["node-7".to_owned(), "20..29".to_owned()]),
            weight: Some(2),
            groups: Some(vec!["eu".to_owned()]),
        };
        let terms = read(&entry(&[Role::Node], node.clone()).unwrap());
        let members = terms.members.unwrap();
        let members: Vec<String> = members.iter().map(ToString::to_string).collect();
        assert_eq!(members, ["7", "20..29"]);
        assert_eq!(
            (terms.weight, terms.groups),
            (2, Some(["eu".into()].into()))
        );
        // A shared token, with the weight of a node that names none.
        let shared = token.entry("nodes".parse().unwrap(), vec![Role::Node], None);
        assert_eq!(read(&shared.unwrap()), NodeTerms::default());
        for (roles, node, told) in [
            (&[Role::Ask][..], node, "does not have the role `node`"),
            (
                &[Role::Node],
                NodeEntry {
                    members: Some(Vec::new()),
                    ..NodeEntry::default()
                },
                "leave it out for any",
            ),
            (
                &[Role::Node],
                NodeEntry {
                    members: Some(vec!["node".to_owned()]),
                    ..NodeEntry::default()
                },
                "names no members",
            ),
            (
                &[Role::Node],
                NodeEntry {
                    weight: Some(0),
                    ..NodeEntry::default()
                },
                "at least 1",
            ),
        ] {
            let refused = entry(roles, node).unwrap_err();
            assert!(refused.contains(told), "{refused}");
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
    fn tokens_are_256_bits_with_a_prefix_and_differ() {
        let (a, b) = (NewToken::generate().unwrap(), NewToken::generate().unwrap());
        assert_ne!(a.text(), b.text());
        assert_eq!(a.text().len(), PREFIX.len() + 43);
        assert!(!format!("{a:?}").contains(a.text()));
    }

    #[test]
    fn a_digest_is_that_of_sha256sum() {
        assert_eq!(TokenDigest::new(b"test").to_string(), DIGEST);
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
