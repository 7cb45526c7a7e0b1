//! Credentials: a file of tokens is refused with its place, or every token in it can be told from the others
//! and may do something; and the token of a header is part of it.

use std::collections::HashSet;

use quell_protocol::http::bearer_token;
use quell_server::access::check_credentials;

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
    let tokens = file
        .get("tokens")
        .map_or(&none, |tokens| tokens.as_array().expect("a list"));
    let (mut names, mut digests) = (HashSet::new(), HashSet::new());
    for token in tokens {
        let text = |field: &str| token[field].as_str().expect("a text");
        let list = |field: &str| token[field].as_array().expect("a list");
        assert!(!text("name").is_empty() && names.insert(text("name")));
        let digest = text("sha256").to_ascii_lowercase();
        assert!(digest.len() == 64 && digest.bytes().all(|digit| digit.is_ascii_hexdigit()));
        assert!(digests.insert(digest), "two tokens that are the same");
        assert!(!list("roles").is_empty(), "it may do nothing");
        assert!(token.get("domains").is_none() || !list("domains").is_empty());
    }
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
