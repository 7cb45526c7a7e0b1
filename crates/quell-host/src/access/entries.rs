//! Entries: what a file of credentials has of a token, a certificate and a user.

use quell_fleet::terms::{Members, NodeTerms};
use serde::{Deserialize, Serialize};

use super::certificate::Subject;
use super::grant::{Grant, Proof};
use super::password::HashedPassword;
use super::role::Role;
use super::token::{NewToken, TokenDigest, TokenName};

/// A file of credentials.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CredentialsFile {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tokens: Vec<TokenEntry>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) certificates: Vec<CertificateEntry>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) users: Vec<UserEntry>,
}

/// A token in a file of credentials.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenEntry {
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
pub(super) struct CertificateEntry {
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
pub(super) struct UserEntry {
    name: TokenName,
    password: HashedPassword,
    roles: Vec<Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    domains: Option<Vec<String>>,
}

/// The same grant, which may be in a fleet what its entry says.
fn with_node(grant: Grant, entry: Option<&NodeEntry>) -> Result<Grant, String> {
    let Some(entry) = entry else {
        return Ok(grant);
    };
    let node = entry.terms().map_err(|why| format!("{grant}: {why}"))?;
    grant.with_node(node)
}

impl TokenEntry {
    pub(super) fn grant(&self) -> Result<Grant, String> {
        let proof = Proof::Token(self.sha256);
        let grant = Grant::new(&self.name, proof, &self.roles, self.domains.as_deref())?;
        with_node(grant, self.node.as_ref())
    }
}

impl CertificateEntry {
    pub(super) fn grant(&self) -> Result<Grant, String> {
        let proof = Proof::Certificate(self.san.clone());
        let grant = Grant::new(&self.name, proof, &self.roles, self.domains.as_deref())?;
        with_node(grant, self.node.as_ref())
    }
}

impl UserEntry {
    pub(super) fn grant(&self) -> Result<Grant, String> {
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

impl NewToken {
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
        let file = CredentialsFile {
            tokens: vec![entry],
            ..CredentialsFile::default()
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
    let file = CredentialsFile {
        users: vec![entry],
        ..CredentialsFile::default()
    };
    toml::to_string(&file).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::credentials::Credentials;
    use super::*;

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
}
