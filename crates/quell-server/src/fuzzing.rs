//! Fuzzing: what the targets in `fuzz/` need of the parts of this crate that nobody else reaches.

use crate::access::ClientCertificate;
use crate::http::console::session;
use crate::http::login;
use axum::http::header::COOKIE;
use axum::http::{HeaderMap, HeaderValue};

/// The name and the password in a field `Authorization`.
#[must_use]
pub fn basic_login(field: &[u8]) -> Option<(String, Vec<u8>)> {
    let login = login::basic(field)?;
    Some((login.name.to_string(), login.password.to_vec()))
}

/// What the cookie of a session says in a field `Cookie`: whose it is, when it ends, and its signature.
#[must_use]
pub fn session_cookie(field: &[u8]) -> Option<(String, i64, Vec<u8>)> {
    let fields = HeaderMap::from_iter([(COOKIE, HeaderValue::from_bytes(field).ok()?)]);
    let (name, ends, signature) = session::shown(&fields)?;
    Some((name.to_string(), ends, signature.into()))
}

/// The DNS names and URIs of a certificate (DER).
#[must_use]
pub fn certificate_names(certificate: &[u8]) -> Vec<String> {
    let certificate = ClientCertificate::read(certificate);
    certificate.names().map(str::to_owned).collect()
}
