//! The URL of a store: servers, login and database.

use std::fmt;
use std::str::FromStr;

/// The default port of a Redis server.
const PORT: u16 = 6379;

/// The default port of a sentinel.
const SENTINEL_PORT: u16 = 26_379;

/// The highest number that a database can have: servers have 16 unless configured otherwise.
const MAX_DATABASES: u32 = 9_999;

/// URL of a store: `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`, or `rediss://` for TLS;
/// `redis+sentinel://HOST,HOST/DATABASE?master=NAME`; `redis+cluster://HOST,HOST`.
///
/// Shown without the password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    pub(crate) shape: ServerShape,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: u32,
    pub(crate) is_encrypted: bool,
}

/// Organization of the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerShape {
    Single(Address),
    Sentinel {
        sentinels: Vec<Address>,
        name: String,
    },
    Cluster(Vec<Address>),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Address {
    pub(crate) fn new(host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        Self { host, port }
    }

    fn parse(text: &str, default: u16) -> Result<Self, UrlError> {
        let bad = || UrlError::Host(text.to_owned());
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(bad)?;
                (
                    host,
                    port.strip_prefix(':').or(port.is_empty().then_some("")),
                )
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, Some("")),
            },
        };
        let port = match port.ok_or_else(bad)? {
            "" => default,
            port => port.parse().map_err(|_| bad())?,
        };
        if host.is_empty() || port == 0 {
            return Err(bad());
        }
        Ok(Self::new(host, port))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        let (scheme, kind) = split_optional(scheme, '+');
        let is_encrypted = match scheme {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(UrlError::Scheme),
        };
        let (rest, query) = split_optional(rest, '?');
        let (login, rest) = rest
            .rsplit_once('@')
            .map_or((None, rest), |(login, rest)| (Some(login), rest));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let database = match path {
            "" => 0,
            path => path
                .parse()
                .ok()
                .filter(|number| *number <= MAX_DATABASES)
                .ok_or_else(|| UrlError::Database(path.to_owned()))?,
        };
        let (user, password) = login.map(parse_login).transpose()?.unwrap_or_default();
        let shape = parse_shape(kind, hosts, query, database)?;
        Ok(Self {
            shape,
            user,
            password,
            database,
            is_encrypted,
        })
    }
}

/// `text` before and after `at`, if it is there.
fn split_optional(text: &str, at: char) -> (&str, Option<&str>) {
    let parts = text.split_once(at);
    parts.map_or((text, None), |(before, after)| (before, Some(after)))
}

fn parse_shape(
    kind: Option<&str>,
    hosts: &str,
    query: Option<&str>,
    database: u32,
) -> Result<ServerShape, UrlError> {
    let all = |port| -> Result<Vec<Address>, UrlError> {
        let hosts = hosts.split(',');
        hosts.map(|host| Address::parse(host, port)).collect()
    };
    match (kind, query) {
        (None | Some("cluster"), Some(query)) => Err(UrlError::Query(query.to_owned())),
        (None, None) => Ok(ServerShape::Single(Address::parse(hosts, PORT)?)),
        (Some("cluster"), None) if database != 0 => Err(UrlError::ClusterDatabase),
        (Some("cluster"), None) => Ok(ServerShape::Cluster(all(PORT)?)),
        (Some("sentinel"), query) => {
            let name = query.and_then(|query| query.strip_prefix("master="));
            let name = name.filter(|name| !name.is_empty() && !name.contains('&'));
            let name = name.and_then(decode).ok_or(UrlError::Name)?;
            Ok(ServerShape::Sentinel {
                sentinels: all(SENTINEL_PORT)?,
                name,
            })
        }
        (Some(_), _) => Err(UrlError::Scheme),
    }
}

type Login = (Option<String>, Option<String>);

fn parse_login(login: &str) -> Result<Login, UrlError> {
    let (user, password) = login.split_once(':').ok_or(UrlError::Login)?;
    let user = decode(user).ok_or(UrlError::Login)?;
    let password = decode(password).ok_or(UrlError::Login)?;
    if password.is_empty() {
        return Err(UrlError::Login);
    }
    let user = (!user.is_empty()).then_some(user);
    Ok((user, Some(password)))
}

/// `text` with `%41` read as `A`.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes().iter();
    while let Some(byte) = rest.next() {
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
        let (high, low) = (digit(rest.next())?, digit(rest.next())?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, addresses) = match &self.shape {
            ServerShape::Single(address) => ("", std::slice::from_ref(address)),
            ServerShape::Sentinel { sentinels, .. } => ("+sentinel", sentinels.as_slice()),
            ServerShape::Cluster(seeds) => ("+cluster", seeds.as_slice()),
        };
        let scheme = if self.is_encrypted { "rediss" } else { "redis" };
        write!(f, "{scheme}{kind}://")?;
        if self.password.is_some() {
            write!(f, "{}:***@", self.user.as_deref().unwrap_or_default())?;
        }
        for (index, address) in addresses.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{address}")?;
        }
        write!(f, "/{}", self.database)?;
        match &self.shape {
            ServerShape::Sentinel { name, .. } => write!(f, "?master={name}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// Reason why a store's URL is not valid. Never shows a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// An unknown scheme.
    #[error(
        "write redis://HOST:PORT/DATABASE, redis+sentinel://HOST,HOST/DATABASE?master=NAME or \
         redis+cluster://HOST,HOST; with rediss in place of redis for TLS"
    )]
    Scheme,
    /// An invalid host or port.
    #[error(
        "{0:?} is not a host: write a name or an address, and perhaps a port, such as redis.internal:6379 \
        or [::1]:6379"
    )]
    Host(String),
    /// A database that is not a number, or too high a number.
    #[error(
        "{0:?} is not a database: write a number from 0 to {MAX_DATABASES}, such as \
        redis://localhost:6379/0"
    )]
    Database(String),
    /// A login that is neither `USER:PASSWORD` nor `:PASSWORD`.
    #[error(
        "the login is incomplete: write redis://USER:PASSWORD@HOST, or redis://:PASSWORD@HOST, \
         with %40 for @, %2f for / and %25 for %"
    )]
    Login,
    /// A database of a cluster, which has only one.
    #[error("a cluster has only database 0: leave the number out")]
    ClusterDatabase,
    /// Sentinels without the name of the primary that they watch.
    #[error(
        "the URL does not name the primary that the sentinels watch: write \
        redis+sentinel://HOST:26379,HOST:26379/0?master=NAME"
    )]
    Name,
    /// An unknown option after `?`.
    #[error("the option {0:?} is unknown in this URL: leave out everything from ? on")]
    Query(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        // URL; how it is shown; user and password.
        let table = [
            ("redis://localhost", "redis://localhost:6379/0", None, None),
            ("redis://[::1]:7000/3", "redis://[::1]:7000/3", None, None),
            ("redis://[::1]", "redis://[::1]:6379/0", None, None),
            (
                "redis+cluster://a,b:7001",
                "redis+cluster://a:6379,b:7001/0",
                None,
                None,
            ),
            (
                "rediss+sentinel://:p@a,[::1]:1/2?master=shop",
                "rediss+sentinel://:***@a:26379,[::1]:1/2?master=shop",
                None,
                Some("p"),
            ),
            (
                "rediss://:p%40s@h:1",
                "rediss://:***@h:1/0",
                None,
                Some("p@s"),
            ),
            (
                "valkey://me:p:w@h/2",
                "redis://me:***@h:6379/2",
                Some("me"),
                Some("p:w"),
            ),
        ];
        for (text, shown, user, password) in table {
            let url: StoreUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            let login = (url.user.as_deref(), url.password.as_deref());
            assert_eq!(login, (user, password), "{text}");
        }
    }

    #[test]
    fn says_what_to_write() {
        for (text, error) in [
            ("localhost:6379", UrlError::Scheme),
            ("http://localhost", UrlError::Scheme),
            ("redis://", UrlError::Host(String::new())),
            ("redis://h:0", UrlError::Host("h:0".to_owned())),
            ("redis://h:x", UrlError::Host("h:x".to_owned())),
            ("redis://[::1", UrlError::Host("[::1".to_owned())),
            ("redis://h/x", UrlError::Database("x".to_owned())),
            ("redis://me@h", UrlError::Login),
            ("redis://me:%zz@h", UrlError::Login),
            ("redis://h?a=1", UrlError::Query("a=1".to_owned())),
            ("redis+ring://h", UrlError::Scheme),
            ("redis+cluster://h,i/1", UrlError::ClusterDatabase),
            ("redis+cluster://h,,i", UrlError::Host(String::new())),
            ("redis+sentinel://h", UrlError::Name),
            ("redis+sentinel://h?master=", UrlError::Name),
        ] {
            assert_eq!(text.parse::<StoreUrl>(), Err(error), "{text}");
        }
    }
}
