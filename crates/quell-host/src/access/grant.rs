//! Grant: what the bearer of a token, a certificate or a password may do.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use quell_core::account::Account;
use quell_fleet::terms::NodeTerms;

use super::certificate::Subject;
use super::password::HashedPassword;
use super::role::Role;
use super::token::{TokenDigest, TokenName};

/// Proof of a caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Proof {
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
    pub(super) proof: Proof,
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
    pub(super) fn new(
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
                "{grant} has no role, so it permits nothing: write roles = [\"ask\"]"
            ));
        }
        if grant
            .domains
            .as_ref()
            .is_some_and(|domains| domains.is_empty())
        {
            return Err(format!(
                "{grant} has no domain, so it permits nothing: name one, or leave `domains` out for all"
            ));
        }
        Ok(grant)
    }

    /// The same, which may be this in a fleet.
    pub(super) fn with_node(self, node: NodeTerms) -> Result<Self, String> {
        if !self.has(Role::Node) {
            return Err(format!(
                "{self} says which node it is for, and does not have the role `node`: write roles = \
                 [\"node\"], or leave `node` out"
            ));
        }
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

    /// Account whose part of scarce places the bearer's calls take up.
    #[must_use]
    pub const fn account(&self) -> Account {
        self.account
    }

    /// Returns true if its entry has this role.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    /// Returns true if it is for all domains.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.domains.is_none()
    }

    /// Returns true if it is for this domain.
    #[must_use]
    pub fn reaches(&self, domain: &str) -> bool {
        let domains = self.domains.as_ref();
        domains.is_none_or(|domains| domains.iter().any(|known| **known == *domain))
    }

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
