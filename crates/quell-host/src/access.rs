//! Access: who may do what.
//!
//! A server without `credentials` answers everybody, so it listens on loopback unless its operator says
//! otherwise. A server with them answers the bearers of its tokens and certificates, each within its roles
//! and domains; only `/healthz` and `/readyz` (their status alone), `/openapi.json`, the handshake of RESP, and
//! health and reflection of gRPC are for everybody.
//!
//! All listeners ask here and nowhere else: [`Access::of_token`] and [`Access::of_connection`] say who a
//! caller is, [`Caller::check`] whether it may do what it asks for. A coordinator of a fleet is to ask here,
//! too:
//!
//! ```
//! use quell_host::access::{Access, Caller, Role};
//! use quell_host::secret_source::SecretSource;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("credentials.toml");
//! # std::fs::write(&path, "")?;
//! # let path = path.to_str().unwrap();
//! let access = Access::open(Some(&SecretSource::parse(path)?))?;
//! // The token of `Authorization: Bearer`, without a name beside it.
//! let caller = access.of_token(None, b"quell_x");
//! assert_eq!(caller, Caller::Stranger);
//! assert!(caller.check(Role::Node, None).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use quell_core::account::Account;
use quell_core::descriptor::Query;
use quell_core::key::printable;

use crate::secret_source::SecretSource;

mod certificate;
mod credentials;
mod entries;
mod failed_logins;
mod grant;
mod live_pages;
mod logins;
mod password;
mod password_entry;
mod role;
mod token;
mod visits;

pub use certificate::ClientCertificate;
pub use credentials::CredentialsError;
pub use entries::NodeEntry;
pub use failed_logins::{BARRED, FailedLogins, TOO_MANY_FAILED_LOGINS};
pub use grant::Grant;
pub use live_pages::{LivePage, LivePages};
pub use password_entry::password_entry;
pub use role::Role;
pub use token::{NewToken, TokenName};
pub use visits::Visits;

use credentials::Credentials;
use logins::{Logins, Remembered};

/// Reads the text of a file of credentials; `name` stands for the file in errors.
///
/// # Errors
/// The first mistake, with its place and what to write.
pub fn check_credentials(name: &str, text: &str) -> Result<(), CredentialsError> {
    Ok(Credentials::parse(name, text).map(drop)?)
}

/// Rights of one server's callers: its credentials, followed.
#[derive(Debug)]
pub struct Access {
    /// None: everybody may do everything.
    credentials: Option<ReloadedCredentials>,
}

/// Credentials that are read again when they change.
#[derive(Debug)]
struct ReloadedCredentials {
    source: SecretSource,
    in_force: ArcSwap<InForce>,
    /// Held from reading to storing, so that an older text of the file never replaces a newer one.
    reload: Mutex<()>,
    /// Changes with each reload, so that a connection knows when to look up its token again.
    version: AtomicU64,
    logins: Logins,
}

/// The credentials of now, and what they have been found to be true of.
#[derive(Debug, Default)]
struct InForce {
    credentials: Credentials,
    remembered: Remembered,
}

/// A name and a password that somebody shows.
pub struct Login {
    /// The name that is shown.
    pub name: TokenName,
    /// The password that is shown.
    pub password: Box<[u8]>,
}

/// Reason why a login was not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginRefused {
    /// Others wait already, as many as may.
    Busy,
    /// Too many logins from there failed.
    TooManyFailed,
}

/// A caller, as far as it has shown who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Anybody, on a server without credentials.
    Anyone,
    /// One without a valid token or certificate, on a server that demands one.
    Stranger,
    /// The bearer of a token or a certificate.
    Bearer(Arc<Grant>),
}

/// Reason why a caller may not do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// It has shown no valid token, and no certificate with an entry.
    Unauthenticated,
    /// It does not have this role.
    Role {
        /// The asker.
        bearer: Arc<Grant>,
        /// The role that is missing.
        role: Role,
    },
    /// It is for some domains, and this is about the whole server.
    Whole(Arc<Grant>),
    /// It is not for this domain.
    Domain {
        /// The asker.
        bearer: Arc<Grant>,
        /// The domain that was asked about.
        domain: Box<str>,
    },
}

impl Access {
    /// Reads the credentials for the first time; a server does not start on those that it cannot read.
    /// Without a source everybody may do everything.
    ///
    /// # Errors
    /// A text that says what is wrong with them, and what to write instead.
    pub fn open(source: Option<&SecretSource>) -> Result<Self, CredentialsError> {
        let followed = |source: &SecretSource| {
            Ok::<_, CredentialsError>(ReloadedCredentials {
                source: source.clone(),
                in_force: ArcSwap::from_pointee(InForce {
                    credentials: Credentials::read(source)?,
                    remembered: Remembered::default(),
                }),
                reload: Mutex::default(),
                version: AtomicU64::new(0),
                logins: Logins::default(),
            })
        };
        let credentials = source.map(followed).transpose()?;
        Ok(Self { credentials })
    }

    /// Reads the credentials again, which may block, and forgets the passwords that were checked. If the
    /// credentials have a mistake, those in force stay. Returns whether they differ from those before.
    ///
    /// # Errors
    /// As [`Access::open`].
    pub fn reload(&self) -> Result<bool, CredentialsError> {
        let Some(followed) = &self.credentials else {
            return Ok(false);
        };
        let _turn = followed.reload.lock();
        let before = followed.in_force.load();
        before.remembered.clear();
        let credentials = Credentials::read(&followed.source)?;
        let differ = credentials != before.credentials;
        if differ {
            followed.in_force.store(Arc::new(InForce {
                credentials,
                remembered: Remembered::default(),
            }));
            followed.version.fetch_add(1, Ordering::Release);
        }
        Ok(differ)
    }

    /// The file that they are read from, to be followed: whoever opened it calls [`Access::reload`].
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.credentials.as_ref()?.source.path()
    }

    /// Returns true if callers have to show a token.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.credentials.is_some()
    }

    /// Returns true if certificates of clients have entries.
    pub fn knows_certificates(&self) -> bool {
        let followed = self.credentials.as_ref();
        followed.is_some_and(|followed| followed.in_force.load().credentials.has_certificates())
    }

    /// Returns true if any entry has this role.
    pub fn has_role(&self, role: Role) -> bool {
        let followed = self.credentials.as_ref();
        followed.is_some_and(|followed| followed.in_force.load().credentials.has_role(role))
    }

    /// Returns true if people have passwords here.
    pub fn has_passwords(&self) -> bool {
        let followed = self.credentials.as_ref();
        followed.is_some_and(|followed| followed.in_force.load().credentials.has_users())
    }

    /// The caller that shows a name and a password. A check takes tens of milliseconds; a password that
    /// was right within the last minute is not checked again. `is_barred` is asked before each check, and
    /// `note_failure` is called after one that fails, also if nobody waits for it any more.
    pub async fn log_in(
        &self,
        login: Login,
        is_barred: impl Fn() -> bool + Send + 'static,
        note_failure: impl FnOnce() + Send + 'static,
    ) -> Result<Caller, LoginRefused> {
        let Some(followed) = &self.credentials else {
            return Ok(Caller::Anyone);
        };
        let in_force = followed.in_force.load_full();
        if let Some(user) = in_force.remembered(&login) {
            return Ok(Caller::Bearer(user));
        }
        if is_barred() {
            return Err(LoginRefused::TooManyFailed);
        }
        let work = move || {
            // While it waited others may have failed, or the same user may have come in.
            if is_barred() {
                return Err(LoginRefused::TooManyFailed);
            }
            let user = in_force
                .remembered(&login)
                .or_else(|| in_force.check(&login));
            if user.is_none() {
                note_failure();
            }
            Ok(user)
        };
        let checked = followed.logins.take_turn(work).await;
        let user = checked.unwrap_or(Err(LoginRefused::Busy))?;
        // The entry may be gone since.
        let in_force = followed.in_force.load();
        let user = user.filter(|user| in_force.credentials.user(user.name()) == Some(user));
        Ok(user.map_or(Caller::Stranger, Caller::Bearer))
    }

    /// The user of this name, as the credentials have it now.
    pub fn user(&self, name: &TokenName) -> Option<Arc<Grant>> {
        let in_force = self.credentials.as_ref()?.in_force.load();
        in_force.credentials.user(name).cloned()
    }

    /// A number that changes whenever an entry may have been added, changed or withdrawn.
    #[inline]
    #[must_use]
    pub fn version(&self) -> u64 {
        let followed = self.credentials.as_ref();
        followed.map_or(0, |followed| followed.version.load(Ordering::Acquire))
    }

    /// A caller that has shown no token, on a connection with this certificate.
    #[inline]
    #[must_use]
    pub fn of_connection(&self, certificate: Option<&ClientCertificate>) -> Caller {
        let Some(followed) = &self.credentials else {
            return Caller::Anyone;
        };
        let grant = certificate
            .and_then(|shown| followed.in_force.load().credentials.of_certificate(shown));
        grant.map_or(Caller::Stranger, Caller::Bearer)
    }

    /// The same caller after a reload: its token may be withdrawn, or have other roles. One whose token is
    /// withdrawn is what its connection is without.
    #[must_use]
    pub fn renew(&self, caller: &Caller, certificate: Option<&ClientCertificate>) -> Caller {
        let renewed = match (caller, &self.credentials) {
            (Caller::Bearer(grant), Some(followed)) => {
                followed.in_force.load().credentials.renew(grant)
            }
            _ => None,
        };
        renewed.map_or_else(|| self.of_connection(certificate), Caller::Bearer)
    }

    /// The caller that shows `token`, in a time that does not depend on how much of it is right; if it gives a name as well, as a user of Redis does, that has to
    /// be the token's. On a server without credentials a token is nothing, and everybody is anyone.
    #[must_use]
    pub fn of_token(&self, name: Option<&[u8]>, token: &[u8]) -> Caller {
        let Some(followed) = &self.credentials else {
            return Caller::Anyone;
        };
        let grant = followed.in_force.load().credentials.find(token);
        match grant.filter(|grant| name.is_none_or(|name| name == grant.name.as_bytes())) {
            Some(grant) => Caller::Bearer(grant),
            None => Caller::Stranger,
        }
    }
}

impl InForce {
    /// The user who shows a password that was right a moment ago.
    fn remembered(&self, login: &Login) -> Option<Arc<Grant>> {
        let user = self.credentials.user(&login.name)?;
        let digest = user.password_digest(&login.password)?;
        let is_known = self.remembered.knows(&login.name, digest, Instant::now());
        is_known.then(|| Arc::clone(user))
    }

    /// The user whose password this is. It takes as long as a hash.
    fn check(&self, login: &Login) -> Option<Arc<Grant>> {
        let user = self
            .credentials
            .check_password(&login.name, &login.password)?;
        let digest = user.password_digest(&login.password)?;
        self.remembered.note(&login.name, digest, Instant::now());
        Some(user)
    }
}

/// Shows nothing of the password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({})", self.name)
    }
}

impl Caller {
    /// The entry that it is known by; `None` for anyone and for strangers.
    #[must_use]
    pub fn grant(&self) -> Option<&Grant> {
        match self {
            Self::Bearer(grant) => Some(grant),
            Self::Anyone | Self::Stranger => None,
        }
    }

    /// Refuses a question that this caller may not ask, and notes on another one whose it is.
    ///
    /// # Errors
    /// As [`Self::check`].
    #[inline]
    pub fn sign(&self, query: &mut Query<'_>) -> Result<(), Denied> {
        self.check(Role::Ask, Some(query.domain()))?;
        query.set_account(self.grant().map_or(Account::NONE, Grant::account));
        Ok(())
    }

    /// Refuses what this caller may not do: something that needs `role`, in `domain` if it is about one.
    ///
    /// # Errors
    /// Names what it lacks, and the fix.
    #[inline]
    pub fn check(&self, role: Role, domain: Option<&str>) -> Result<(), Denied> {
        match self {
            Self::Anyone => Ok(()),
            Self::Stranger => Err(Denied::Unauthenticated),
            Self::Bearer(grant) if !grant.has(role) => Err(Denied::Role {
                bearer: Arc::clone(grant),
                role,
            }),
            Self::Bearer(grant) => match domain.filter(|domain| !grant.reaches(domain)) {
                Some(domain) => Err(Denied::Domain {
                    bearer: Arc::clone(grant),
                    domain: domain.into(),
                }),
                None => Ok(()),
            },
        }
    }

    /// As [`Self::check`], of something for which one of several roles is enough. The first is the one to ask for.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_either(&self, roles: &[Role], domain: Option<&str>) -> Result<(), Denied> {
        let has = |role: &&Role| self.check(**role, None).is_ok();
        let role = roles.iter().find(has).or_else(|| roles.first());
        role.map_or_else(|| self.check_any(), |role| self.check(*role, domain))
    }

    /// Refuses a stranger.
    ///
    /// # Errors
    /// [`Denied::Unauthenticated`].
    pub fn check_any(&self) -> Result<(), Denied> {
        match self {
            Self::Stranger => Err(Denied::Unauthenticated),
            Self::Anyone | Self::Bearer(_) => Ok(()),
        }
    }

    /// Refuses what is about the whole server to a caller that is limited to some domains.
    ///
    /// # Errors
    /// Names what it lacks, and the fix.
    pub fn check_whole(&self) -> Result<(), Denied> {
        match self {
            Self::Anyone => Ok(()),
            Self::Stranger => Err(Denied::Unauthenticated),
            Self::Bearer(grant) if grant.is_whole() => Ok(()),
            Self::Bearer(grant) => Err(Denied::Whole(Arc::clone(grant))),
        }
    }

    /// Returns true if this caller is limited to no domains.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.check_whole().is_ok()
    }

    /// Returns true if this caller may know of a domain, for lists of several.
    #[must_use]
    pub fn reaches(&self, domain: &str) -> bool {
        match self {
            Self::Anyone => true,
            Self::Stranger => false,
            Self::Bearer(grant) => grant.reaches(domain),
        }
    }
}

impl std::error::Error for Denied {}

/// Its name, for the log.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anyone => f.write_str("anyone, since there are no credentials"),
            Self::Stranger => f.write_str("a stranger"),
            Self::Bearer(grant) => grant.fmt(f),
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unauthenticated => f.write_str(
                "no valid token came with this: send Authorization: Bearer TOKEN (`quell token new` makes \
                 one)",
            ),
            Self::Role { bearer, role } => write!(
                f,
                "{bearer} does not have the role `{role}`: add it to its roles in the credentials, or \
                 use another one"
            ),
            Self::Whole(bearer) => write!(
                f,
                "{bearer} is for some domains only, and this is about none of them: use one without \
                 `domains`"
            ),
            Self::Domain { bearer, domain } => write!(
                f,
                "{bearer} is not for the domain `{}`: add it to its domains in the credentials, or use \
                 another one",
                printable(domain)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_testkit::certificates::Authority;
    use tokio_rustls::rustls::pki_types::CertificateDer;
    use tokio_rustls::rustls::pki_types::pem::PemObject;

    use super::*;

    fn access(text: &str) -> (tempfile::TempDir, Access) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials.toml");
        std::fs::write(&path, text).unwrap();
        let source = SecretSource::parse(path.to_str().unwrap()).unwrap();
        let access = Access::open(Some(&source)).unwrap();
        (folder, access)
    }

    fn entry(name: &str, token: &NewToken, more: &str) -> String {
        let digest = token.digest();
        format!("[[tokens]]\nname = '{name}'\nsha256 = '{digest}'\n{more}\n")
    }

    #[test]
    fn without_credentials_everybody_may_do_everything() {
        let access = Access::open(None).unwrap();
        for caller in [
            access.of_connection(None),
            access.of_token(Some(b"x"), b"y"),
        ] {
            for role in Role::ALL {
                assert_eq!(caller.check(role, Some("shop")), Ok(()));
            }
        }
    }

    #[test]
    fn a_token_is_for_its_roles_and_domains_only() {
        let (ask, admin) = (NewToken::generate().unwrap(), NewToken::generate().unwrap());
        let text = entry(
            "checkout",
            &ask,
            "roles = ['ask', 'read']\ndomains = ['shop']",
        ) + &entry("ops", &admin, "roles = ['admin']");
        let (_folder, access) = access(&text);

        let nobody = access.of_connection(None);
        assert_eq!(nobody.check(Role::Ask, None), Err(Denied::Unauthenticated));
        let checkout = access.of_token(None, ask.text().as_bytes());
        let mut query = Query::new("shop");
        assert_eq!(checkout.sign(&mut query), Ok(()));
        assert_eq!(query.account(), checkout.grant().unwrap().account());
        assert!(query.account().is_some());
        assert!(checkout.sign(&mut Query::new("bank")).is_err());
        assert_eq!(checkout.check(Role::Ask, Some("shop")), Ok(()));
        assert_eq!(checkout.check(Role::Read, None), Ok(()));
        let denied = checkout.check(Role::Ask, Some("bank")).unwrap_err();
        assert!(
            denied.to_string().contains("not for the domain `bank`"),
            "{denied}"
        );
        let denied = checkout.check(Role::Admin, Some("shop")).unwrap_err();
        assert!(denied.to_string().contains("role `admin`"), "{denied}");
        assert!(checkout.reaches("shop") && !checkout.reaches("bank"));

        let ops = access.of_token(Some(b"ops"), admin.text().as_bytes());
        assert_eq!(ops.check(Role::Admin, Some("bank")), Ok(()));
        // A role is that role and no other.
        assert!(ops.check(Role::Read, None).is_err());
        let grant = ops.grant().unwrap();
        assert_eq!((grant.name().as_str(), grant.is_whole()), ("ops", true));
        assert_eq!((nobody.grant(), ops.is_whole()), (None, true));
        assert_ne!(grant.account(), query.account());
        access.reload().unwrap();
        let checkout = access.of_token(None, ask.text().as_bytes());
        let same = checkout.grant().unwrap().account();
        assert_eq!(same, query.account(), "also after a reload");
    }

    /// As a coordinator asks: by a token, or by the certificate of the connection.
    #[test]
    fn a_node_is_known_by_its_token_or_its_certificate() {
        let token = NewToken::generate().unwrap();
        let text = entry("edge-1", &token, "roles = ['node']")
            + "[[certificates]]\nname = 'edge-2'\nsan = 'spiffe://a.org/edge-2'\nroles = ['node']\n";
        let (_folder, access) = access(&text);
        let pair = Authority::new("authority").sign(&["spiffe://a.org/edge-2"]);
        let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
        let certificate = ClientCertificate::read(&der);
        for (caller, name) in [
            (access.of_token(None, token.text().as_bytes()), "edge-1"),
            (access.of_connection(Some(&certificate)), "edge-2"),
        ] {
            assert_eq!(caller.check(Role::Node, None), Ok(()));
            assert_eq!(caller.grant().unwrap().name().as_str(), name);
            for role in Role::ALL.into_iter().filter(|role| *role != Role::Node) {
                assert!(caller.check(role, None).is_err(), "{name} as {role}");
            }
        }
    }

    #[test]
    fn a_wrong_token_or_name_is_nobody() {
        let token = NewToken::generate().unwrap();
        let (_folder, access) = access(&entry("a", &token, "roles = ['ask']"));
        let text = token.text();
        let mut long = text.to_owned();
        long.push('x');
        for (name, shown) in [
            (None, ""),
            (None, &text[1..]),
            (None, &long),
            (None, &*token.digest().to_string()),
            (Some(&b"b"[..]), text),
            (Some(b""), text),
        ] {
            assert_eq!(access.of_token(name, shown.as_bytes()), Caller::Stranger);
        }
        assert_ne!(
            access.of_token(Some(b"a"), text.as_bytes()),
            Caller::Stranger
        );
    }

    #[test]
    fn a_withdrawn_token_is_nobody_after_the_reload_and_mistakes_change_nothing() {
        let token = NewToken::generate().unwrap();
        let text = entry("a", &token, "roles = ['ask']");
        let (folder, access) = access(&text);
        let path = folder.path().join("credentials.toml");
        let is_known = || access.of_token(None, token.text().as_bytes()) != Caller::Stranger;
        assert!(!access.reload().unwrap());
        let before = access.version();

        std::fs::write(&path, text.replace("ask", "aks")).unwrap();
        assert!(access.reload().is_err());
        assert!(is_known());
        assert_eq!(access.version(), before);

        std::fs::write(
            &path,
            entry("b", &NewToken::generate().unwrap(), "roles = ['ask']"),
        )
        .unwrap();
        assert!(access.reload().unwrap());
        assert!(!is_known());
        assert_ne!(access.version(), before);
    }
}
