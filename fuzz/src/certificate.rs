//! Certificates of clients (DER): whatever the bytes, every name is one of theirs; one with a colon is a URI as
//! it stands there, one without a DNS name in small letters. A member of a fleet is named by a URI alone.

use quell_host::access::ClientCertificate;

/// Tries one input.
///
/// # Panics
///
/// When a promise does not hold.
pub fn fuzz(certificate: &[u8]) {
    let read = ClientCertificate::read(certificate);
    let names: Vec<String> = read.names().map(str::to_owned).collect();
    let has = |bytes: &[u8], name: &str| {
        bytes
            .windows(name.len().max(1))
            .any(|it| it == name.as_bytes())
    };
    let small = certificate.to_ascii_lowercase();
    for name in &names {
        let is_there = match name.contains(':') {
            true => has(certificate, name),
            false => *name == name.to_ascii_lowercase() && (name.is_empty() || has(&small, name)),
        };
        assert!(is_there, "{name:?}");
    }
    assert_eq!(read.to_string(), names.join(", "));
    if let Some((member, terms)) = read.fleet_member("shop") {
        let names_it = |name: &String| {
            let after = name.rsplit_once("/quell/shop/member/").map(|(_, id)| id);
            let id = after.and_then(|after| after.split('/').next());
            name.contains(':') && id.is_some_and(|id| id.parse() == Ok(member))
        };
        assert!(names.iter().any(names_it), "{member} of {names:?}");
        assert!(terms.weight > 0);
    }
}
