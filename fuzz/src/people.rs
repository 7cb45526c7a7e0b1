//! What a browser shows of a person: the password in `Authorization: Basic`, and the session in a cookie. What
//! is read is written in the field as it stands, and no longer than it may be.

use axum::http::header::COOKIE;
use axum::http::{HeaderMap, HeaderValue};
use quell_host::console::session;
use quell_host::login;

/// Tries one input, as each of the two fields.
///
/// # Panics
///
/// When a promise does not hold.
pub fn fuzz(field: &[u8]) {
    login(field);
    cookie(field);
}

fn is_name(name: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(is_of_name)
}

fn login(field: &[u8]) {
    let Some(shown) = login::basic(field) else {
        return;
    };
    let (name, password) = (shown.name.to_string(), shown.password);
    assert!(is_name(&name), "{name:?}");
    let shown = [name.as_bytes(), b":", &password].concat();
    assert!(field[..6].eq_ignore_ascii_case(b"basic "));
    assert_eq!(field[6..].trim_ascii(), base64(&shown));
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::new();
    for three in bytes.chunks(3) {
        let mut all = [0; 4];
        all[1..=three.len()].copy_from_slice(three);
        let all = u32::from_be_bytes(all);
        for place in 0..4 {
            let digit = all >> (18 - 6 * place) & 63;
            text.push(match place <= three.len() {
                true => DIGITS[digit as usize],
                false => b'=',
            });
        }
    }
    text
}

fn cookie(field: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(field) else {
        return;
    };
    let fields = HeaderMap::from_iter([(COOKIE, value)]);
    let Some((name, ends, signature)) = session::shown(&fields) else {
        return;
    };
    let name = name.to_string();
    assert!(is_name(&name), "{name:?}");
    assert!(signature.len() <= 192, "{} bytes", signature.len());
    let text = std::str::from_utf8(field).expect("ASCII");
    let mut values = text.match_indices("quell_console=");
    let is_written = values.any(|(place, begin)| {
        let value = &text[place + begin.len()..];
        let Some((number, rest)) = value.split_once('.') else {
            return false;
        };
        let person = rest.split_once('.').map_or("", |(_nonce, person)| person);
        number.parse() == Ok(ends) && person.starts_with(&format!("{name}."))
    });
    assert!(is_written, "{ends} of {name} is not in {text:?}");
}
