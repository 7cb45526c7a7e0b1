//! Bearer: the token in a field `Authorization` (RFC 6750).

/// The token in `Bearer TOKEN`; `None` if it is of another scheme.
#[must_use]
pub fn bearer_token(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = authorization.split_at_checked(6)?;
    let token = token.strip_prefix(b" ")?.trim_ascii_start();
    scheme.eq_ignore_ascii_case(b"bearer").then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_shows_its_token_after_one_word() {
        for (value, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc", Some("abc")),
            ("BEARER abc", Some("abc")),
            ("Bearer", None),
            ("Bearerabc", None),
            ("Basic abc", None),
            ("", None),
        ] {
            assert_eq!(
                bearer_token(value.as_bytes()),
                token.map(str::as_bytes),
                "{value}"
            );
        }
    }
}
