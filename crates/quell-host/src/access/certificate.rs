//! Certificate: who a client is by the certificate that it showed.

use std::fmt;
use std::str::FromStr;

use quell_fleet::agent::MemberId;
use quell_fleet::terms::NodeTerms;
use serde::{Deserialize, Serialize};
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// Longest name of a subject, in bytes: that of a SPIFFE id.
const MAX_SUBJECT: usize = 2_048;

/// A name of the subject of a certificate: a DNS name in lower case, or a URI. Only a URI has a colon.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subject(Box<str>);

/// A certificate that a client showed, and that an authority of `tls_client_ca` vouches for.
#[derive(Debug, Hash)]
pub struct ClientCertificate {
    /// Whom it is for.
    pub subjects: Box<[Subject]>,
}

impl ClientCertificate {
    /// Reads the DNS names and URIs of a certificate (DER). It is not verified here: rustls has done that
    /// with the authorities that the listener trusts. One that cannot be read has no names.
    #[must_use]
    pub fn read(certificate: &[u8]) -> Self {
        Self {
            subjects: subjects(certificate).unwrap_or_default(),
        }
    }

    /// Its DNS names and URIs.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.subjects.iter().map(|subject| &*subject.0)
    }

    /// The member of a fleet that the certificate names, and what it may be there: by a URI that ends with
    /// `/quell/FLEET/member/ID`, such as `spiffe://example.org/quell/shop/member/7`. After the number it may
    /// say `/weight/N`, and `/group/NAME` for each group. None if no URI is so, or several are that differ.
    #[must_use]
    pub fn fleet_member(&self, fleet: &str) -> Option<(u32, NodeTerms)> {
        let before = format!("/quell/{fleet}/member/");
        let mut all = self.subjects.iter().filter_map(|subject| {
            let uri = Some(&*subject.0).filter(|name| name.contains(':'))?;
            let (_, member) = uri.rsplit_once(&before)?;
            read_member(member)
        });
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    }
}

/// Reads `ID`, `ID/weight/N`, `ID/group/NAME/group/NAME` and so on.
fn read_member(text: &str) -> Option<(u32, NodeTerms)> {
    let number = |text: &str| {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|_| is_plain)
    };
    let mut parts = text.split('/');
    let member = number(parts.next()?)?;
    let (mut weight, mut groups) = (None, Vec::new());
    while let Some(what) = parts.next() {
        let value = parts.next().filter(|value| !value.is_empty())?;
        match what {
            "weight" if weight.is_none() => weight = Some(number(value).filter(|it| *it > 0)?),
            "group" => groups.push(value.into()),
            _ => return None,
        }
    }
    let terms = NodeTerms {
        members: Some([MemberId(member).into()].into()),
        weight: weight.unwrap_or(NodeTerms::WEIGHT),
        groups: (!groups.is_empty()).then(|| groups.into()),
    };
    Some((member, terms))
}

impl fmt::Display for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().collect::<Vec<_>>().join(", "))
    }
}

/// The DNS names and URIs among the subject alternative names; names of other kinds have no entries.
fn subjects(certificate: &[u8]) -> Option<Box<[Subject]>> {
    let parsed = CertificateInner::<Raw>::from_der(certificate).ok()?;
    let (_, names) = parsed
        .tbs_certificate()
        .get_extension::<SubjectAltName>()
        .ok()??;
    let subject = |name: &GeneralName| match name {
        GeneralName::DnsName(name) if !name.as_str().contains(':') => {
            Some(Subject::dns(name.as_str()))
        }
        GeneralName::UniformResourceIdentifier(uri) if uri.as_str().contains(':') => {
            Some(Subject(uri.as_str().into()))
        }
        _ => None,
    };
    Some(names.0.iter().filter_map(subject).collect())
}

impl Subject {
    fn dns(name: &str) -> Self {
        Self(name.to_ascii_lowercase().into())
    }
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_name = !text.is_empty() && text.bytes().all(is_of_name);
        let is_uri = text.contains(':') && text.bytes().all(|byte| byte.is_ascii_graphic());
        match text.len() <= MAX_SUBJECT {
            true if is_uri => Ok(Self(text.into())),
            true if is_name => Ok(Self::dns(text)),
            _ => Err(format!(
                "`{text}` is neither a DNS name nor a URI: write one of the certificate's subject \
                alternative names as it is, such as checkout.internal or spiffe://example.org/checkout"
            )),
        }
    }
}

impl TryFrom<String> for Subject {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Subject> for String {
    fn from(subject: Subject) -> Self {
        subject.0.into()
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use quell_testkit::certificates::Authority;
    use tokio_rustls::rustls::pki_types::CertificateDer;
    use tokio_rustls::rustls::pki_types::pem::PemObject;

    use super::*;

    #[test]
    fn a_subject_is_a_dns_name_or_a_uri() {
        for (text, read) in [
            ("checkout.internal", Some("checkout.internal")),
            ("Checkout.INTERNAL", Some("checkout.internal")),
            ("spiffe://a.org/Checkout", Some("spiffe://a.org/Checkout")),
            ("urn:service:checkout", Some("urn:service:checkout")),
            ("", None),
            ("*.internal", None),
            ("CN=checkout", None),
            ("spiffe://a.org/a b", None),
        ] {
            let subject: Option<Subject> = text.parse().ok();
            assert_eq!(subject.map(String::from).as_deref(), read, "{text}");
        }
        assert!("a".repeat(MAX_SUBJECT + 1).parse::<Subject>().is_err());
    }

    #[test]
    fn a_certificate_names_a_member_by_a_uri() {
        for (uris, fleet, member) in [
            (&["spiffe://a.org/quell/shop/member/7"][..], "shop", Some(7)),
            (
                &["spiffe://a.org/x", "urn:x/quell/shop/member/7"],
                "shop",
                Some(7),
            ),
            (&["spiffe://a.org/quell/shop/member/7"], "bank", None),
            (&["spiffe://a.org/quell/shop/member/+7"], "shop", None),
            (&["spiffe://a.org/quell/shop/member/"], "shop", None),
            (
                &["spiffe://a.org/quell/shop/member/4294967296"],
                "shop",
                None,
            ),
            (
                &["x:/quell/shop/member/7", "x:/quell/shop/member/8"],
                "shop",
                None,
            ),
            (&[], "shop", None),
        ] {
            let subjects = uris.iter().map(|uri| uri.parse().unwrap()).collect();
            let certificate = ClientCertificate { subjects };
            let found = certificate.fleet_member(fleet);
            assert_eq!(found.map(|(member, _)| member), member, "{uris:?}");
        }
    }

    #[test]
    fn the_uri_of_a_member_may_say_its_weight_and_its_groups() {
        let terms = |after: &str| {
            let uri = format!("spiffe://a.org/quell/shop/member/7{after}");
            let subjects = Box::new([uri.parse().unwrap()]);
            let found = ClientCertificate { subjects }.fleet_member("shop");
            found.map(|(member, terms)| {
                assert_eq!(terms.check_member(MemberId(member)), Ok(()));
                let groups = terms.groups.map(|groups| groups.join(","));
                (member, terms.weight, groups)
            })
        };
        assert_eq!(terms(""), Some((7, 1, None)));
        assert_eq!(terms("/weight/2"), Some((7, 2, None)));
        let both = "/group/eu/weight/3/group/gpu";
        assert_eq!(terms(both), Some((7, 3, Some("eu,gpu".to_owned()))));
        for wrong in [
            "/",
            "/weight",
            "/weight/0",
            "/weight/+1",
            "/weight/1/weight/9",
            "/group/",
            "/role/admin",
        ] {
            assert_eq!(terms(wrong), None, "{wrong}");
        }
    }

    /// A DNS name that looks like a URI is none: an authority may sign the one and not the other.
    #[test]
    fn dns_names_and_uris_of_a_certificate_are_not_mixed_up() {
        let names = "DNS:A.Internal,DNS:spiffe://a.org/admin,URI:spiffe://a.org/ask,URI:b.internal,\
                     email:ops@a.org";
        let pair = Authority::new("authority").sign_for(names);
        let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
        let read = ClientCertificate::read(&der);
        assert_eq!(read.to_string(), "a.internal, spiffe://a.org/ask");
        assert!(ClientCertificate::read(b"nothing").subjects.is_empty());
    }
}
