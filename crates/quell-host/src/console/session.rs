//! Session: the signed cookie of a person who has logged in.
//!
//! The key is random and lives as long as the process: after a restart people log in again. A session ends
//! after half a day, at a logout, and when the password changes; roles are those of now.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::COOKIE;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use parking_lot::Mutex;
use sha2::Sha256;

use super::page::host;
use crate::access::{Access, Grant, TokenName};

/// Length of a session, in seconds: a working day.
const LENGTH: i64 = 12 * 60 * 60;

/// The cookie of a server.
pub const OF_SERVER: &str = "quell_console";

/// The cookie of a coordinator.
pub const OF_COORDINATOR: &str = "quell_fleet_console";

/// Logouts that are remembered until their session would have ended; beyond that the browser alone forgets.
const MAX_ENDED: usize = 10_000;

/// Longest cookie that is looked at, in bytes: a name has at most 64.
const MAX_BYTES: usize = 256;

/// Makes sessions, and recognises its own.
#[derive(Debug)]
pub struct Sessions {
    /// Beginning of the cookie's name.
    name: &'static str,
    /// `None` if the system had no random numbers: nobody can log in.
    key: Option<[u8; 32]>,
    /// Signatures of sessions that were ended early, with when they would have ended.
    ended: Mutex<HashMap<Box<[u8]>, i64>>,
}

/// A cookie's content.
struct SessionCookie {
    name: TokenName,
    ends: i64,
    /// Random: the logins of one person in one second are sessions of their own.
    nonce: Box<str>,
    signature: Box<[u8]>,
}

impl SessionCookie {
    /// Reads `ENDS.NONCE.NAME.SIGNATURE`, where a name may contain dots.
    fn parse(text: &str) -> Option<Self> {
        let (ends, rest) = text.get(..text.len().min(MAX_BYTES))?.split_once('.')?;
        let (nonce, rest) = rest.split_once('.')?;
        let (name, signature) = rest.rsplit_once('.')?;
        Some(Self {
            name: name.parse().ok()?,
            ends: ends.parse().ok()?,
            nonce: nonce.into(),
            signature: URL_SAFE_NO_PAD.decode(signature).ok()?.into(),
        })
    }
}

impl Sessions {
    /// Sessions whose cookie has this name.
    pub fn new(name: &'static str) -> Self {
        let mut key = [0; 32];
        let is_random = getrandom::fill(&mut key).is_ok();
        Self {
            name,
            key: is_random.then_some(key),
            ended: Mutex::default(),
        }
    }

    fn signed(&self, person: &Grant, ends: i64, nonce: &str) -> Option<Hmac<Sha256>> {
        let mut signature = Hmac::<Sha256>::new_from_slice(&self.key?).ok()?;
        signature.update(person.password_mark()?.as_bytes());
        signature.update(&ends.to_be_bytes());
        signature.update(&nonce.len().to_be_bytes());
        signature.update(nonce.as_bytes());
        signature.update(person.name().as_str().as_bytes());
        Some(signature)
    }

    /// The name of the cookie for the host that a request names. Browsers tell no ports apart, and each may have
    /// a server of its own.
    pub fn name(&self, request: &Request) -> String {
        let port = host(request).and_then(|host| host.rsplit_once(':'));
        let port = port.and_then(|(_, port)| port.parse::<u16>().ok());
        port.map_or_else(
            || self.name.to_owned(),
            |port| format!("{}_{port}", self.name),
        )
    }

    /// The field `Set-Cookie` of a session that begins now. `None` for who has no password.
    pub fn begin(&self, name: &str, person: &Grant, is_secure: bool) -> Option<String> {
        let ends = Timestamp::now().as_second() + LENGTH;
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).ok()?;
        let nonce = URL_SAFE_NO_PAD.encode(nonce);
        let signature = self.signed(person, ends, &nonce)?.finalize().into_bytes();
        let (person, signature) = (person.name(), URL_SAFE_NO_PAD.encode(signature));
        let value = format!("{ends}.{nonce}.{person}.{signature}");
        Some(field((name, &value), LENGTH, is_secure))
    }

    /// The person whose session a cookie is.
    pub fn read(&self, access: &Access, cookie: &str) -> Option<Arc<Grant>> {
        self.read_at(access, cookie, Timestamp::now().as_second())
    }

    fn read_at(&self, access: &Access, cookie: &str, now: i64) -> Option<Arc<Grant>> {
        let shown = SessionCookie::parse(cookie)?;
        let person = access.user(&shown.name)?;
        let signed = self.signed(&person, shown.ends, &shown.nonce)?;
        signed.verify_slice(&shown.signature).ok()?;
        let is_over = shown.ends <= now || self.ended.lock().contains_key(&shown.signature);
        (!is_over).then_some(person)
    }

    /// Ends a session before its time. Returns the field `Set-Cookie` that makes the browser forget it.
    pub fn end(&self, access: &Access, request: &Request, is_secure: bool) -> String {
        let cookie = self.cookie(request);
        let shown = cookie
            .as_deref()
            .filter(|cookie| self.read(access, cookie).is_some());
        if let Some(shown) = shown.and_then(SessionCookie::parse) {
            let now = Timestamp::now().as_second();
            let mut ended = self.ended.lock();
            ended.retain(|_, ends| *ends > now);
            if ended.len() < MAX_ENDED {
                ended.insert(shown.signature, shown.ends);
            }
        }
        field((&self.name(request), ""), 0, is_secure)
    }

    /// The session's cookie of a request.
    pub fn cookie(&self, request: &Request) -> Option<String> {
        cookie(request.headers(), &self.name(request))
    }
}

/// The field that sets a cookie.
fn field((name, value): (&str, &str), seconds: i64, is_secure: bool) -> String {
    let secure = if is_secure { "; Secure" } else { "" };
    format!("{name}={value}; Path=/console; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

/// The cookie of this name.
fn cookie(fields: &HeaderMap, name: &str) -> Option<String> {
    let fields = fields.get_all(COOKIE).iter();
    let mut cookies = fields
        .filter_map(|field| field.to_str().ok())
        .flat_map(|field| field.split(';'))
        .filter_map(|cookie| cookie.trim().split_once('='));
    cookies.find_map(|(found, value)| (found == name).then(|| value.to_owned()))
}

/// Reads the cookie of a server's session in these fields: whose it is, when it ends, and its signature.
pub fn shown(fields: &HeaderMap) -> Option<(TokenName, i64, Box<[u8]>)> {
    let shown = SessionCookie::parse(&cookie(fields, OF_SERVER)?)?;
    Some((shown.name, shown.ends, shown.signature))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Role, password_entry};
    use crate::secret_source::SecretSource;

    fn access(folder: &tempfile::TempDir, password: &str) -> Access {
        let name: TokenName = "ada.l@x".parse().unwrap();
        let path = folder.path().join("credentials.toml");
        let entry = password_entry(name, password, vec![Role::Read], None).unwrap();
        std::fs::write(&path, entry).unwrap();
        let source = SecretSource::parse(path.to_str().unwrap()).unwrap();
        Access::open(Some(&source)).unwrap()
    }

    #[test]
    fn a_session_is_its_person_until_it_is_over_or_the_password_changes() {
        let folder = tempfile::tempdir().unwrap();
        let access_now = access(&folder, "four words of ada");
        let ada = access_now.user(&"ada.l@x".parse().unwrap()).unwrap();
        let sessions = Sessions::new(OF_SERVER);
        let to = |host: &str, cookie: &str| {
            let request = Request::builder()
                .header("host", host)
                .header(COOKIE, cookie);
            request.body(axum::body::Body::empty()).unwrap()
        };
        let name = sessions.name(&to("quell.example:8443", ""));
        let field = sessions.begin(&name, &ada, true).unwrap();
        assert!(
            field.ends_with("; Path=/console; Max-Age=43200; HttpOnly; SameSite=Strict; Secure")
        );
        let sent = format!("a=b; {}", field.split(';').next().unwrap());
        let own = to("quell.example:8443", &sent);
        let shown = sessions.cookie(&own).unwrap();
        assert_eq!(Sessions::new(OF_COORDINATOR).cookie(&own), None);
        for other in ["quell.example:8444", "quell.example", "[::1]"] {
            assert_eq!(sessions.cookie(&to(other, &sent)), None, "{other}");
        }
        assert_eq!(sessions.read(&access_now, &shown), Some(Arc::clone(&ada)));
        let now = Timestamp::now().as_second();
        assert!(
            sessions
                .read_at(&access_now, &shown, now + LENGTH - 60)
                .is_some()
        );
        assert!(
            sessions
                .read_at(&access_now, &shown, now + LENGTH + 60)
                .is_none()
        );
        let later = shown.replacen(&shown[..10], "9999999999", 1);
        let nonce = shown.split('.').nth(1).unwrap();
        let other_nonce = shown.replacen(nonce, &"A".repeat(nonce.len()), 1);
        let moved = shown.replacen(&format!("{nonce}.ada.l@x"), &format!("{nonce}ada.l.@x"), 1);
        let other = shown.replace("ada.l@x", "eve");
        for wrong in [
            &later,
            &other,
            &other_nonce,
            &moved,
            &shown[..shown.len() - 1],
            "",
            ".",
            "1.a.b",
        ] {
            assert!(sessions.read(&access_now, wrong).is_none(), "{wrong}");
        }
        assert!(
            Sessions::new(OF_SERVER).read(&access_now, &shown).is_none(),
            "another key"
        );
        let changed = access(&folder, "five other words of ada");
        assert!(sessions.read(&changed, &shown).is_none());

        // Another login in the same second is a session of its own.
        let again = sessions.begin(&name, &ada, true).unwrap();
        let sent = format!("a=b; {}", again.split(';').next().unwrap());
        let second = sessions.cookie(&to("quell.example:8443", &sent)).unwrap();
        assert_ne!(second, shown);

        let field = sessions.end(&access_now, &own, false);
        assert!(field.starts_with("quell_console_8443=; ") && field.contains("Max-Age=0"));
        assert!(sessions.read(&access_now, &shown).is_none(), "logged out");
        assert_eq!(sessions.read(&access_now, &second), Some(ada));
    }
}
