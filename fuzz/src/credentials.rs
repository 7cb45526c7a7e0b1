//! Credentials: a file is refused with its place, or every entry in it can be told from the others and may do
//! something, and no password costs more than a login may; and the token of a header is part of it.

use std::collections::HashSet;

use quell_host::access::check_credentials;
use quell_protocol::http::bearer_token;

/// Tries one input, as a file and as a header.
///
/// # Panics
///
/// When a promise does not hold.
pub fn fuzz(input: &[u8]) {
    header(input);
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    match check_credentials("fuzz.toml", text) {
        Ok(()) => sound(text),
        Err(error) => {
            let told = error.to_string();
            assert!(told.starts_with("fuzz.toml"), "{told}");
        }
    }
}

/// Another reader finds the same in a file that is accepted.
fn sound(text: &str) {
    let file: toml::Table = text.parse().expect("it is TOML");
    let none = Vec::new();
    let entries = |kind: &str| {
        let entries = file.get(kind);
        entries.map_or(&none, |entries| entries.as_array().expect("a list"))
    };
    let (mut names, mut digests) = (HashSet::new(), HashSet::new());
    for entry in ["tokens", "certificates", "users"]
        .into_iter()
        .flat_map(entries)
    {
        let list = |field: &str| entry[field].as_array().expect("a list");
        let name = field(entry, "name");
        assert!(!name.is_empty() && names.insert(name));
        assert!(!list("roles").is_empty(), "it may do nothing");
        assert!(entry.get("domains").is_none() || !list("domains").is_empty());
    }
    for token in entries("tokens") {
        let digest = field(token, "sha256").to_ascii_lowercase();
        assert!(digest.len() == 64 && digest.bytes().all(|digit| digit.is_ascii_hexdigit()));
        assert!(digests.insert(digest), "two tokens that are the same");
    }
    for user in entries("users") {
        affordable(field(user, "password"));
        for role in user["roles"].as_array().expect("a list") {
            let role = role.as_str().expect("a text");
            assert!(["read", "admin", "metrics"].contains(&role), "{role}");
        }
    }
}

fn field<'a>(entry: &'a toml::Value, name: &str) -> &'a str {
    entry[name].as_str().expect("a text")
}

/// A hash of Argon2id within the bounds of a login, read by hand.
fn affordable(hash: &str) {
    let numbers = hash.strip_prefix("$argon2id$v=19$").expect("the prefix");
    let (numbers, _) = numbers.split_once('$').expect("a salt");
    let mut costs = [("m", 7_168..=65_536), ("t", 1..=4), ("p", 1..=4)].map(|cost| (cost, 0));
    for number in numbers.split(',') {
        let (name, value) = number.split_once('=').expect("a number");
        let value: u32 = value.parse().expect("a whole number");
        let cost = costs.iter_mut().find(|((known, _), _)| *known == name);
        let ((_, bounds), count) = cost.expect("a cost");
        assert!(bounds.contains(&value), "{hash}");
        *count += 1;
    }
    assert!(costs.iter().all(|(_, count)| *count == 1), "{hash}");
}

/// A token is what follows the scheme and its spaces, byte for byte.
fn header(value: &[u8]) {
    let is_bearer = value.len() > 6 && value[..7].eq_ignore_ascii_case(b"bearer ");
    let token = bearer_token(value);
    assert_eq!(token.is_some(), is_bearer);
    if let Some(token) = token {
        assert!(value.ends_with(token) && !token.starts_with(b" "));
        let between = &value[7..value.len() - token.len()];
        assert!(between.iter().all(u8::is_ascii_whitespace));
    }
}
