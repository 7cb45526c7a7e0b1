//! Entries: how a request becomes a query.

use std::borrow::Cow;
use std::sync::Arc;
use std::{fmt, iter};

use http::header::{COOKIE, HeaderName};
use http::request::Parts;
use quell_core::cost::Cost;
use quell_core::descriptor::{Descriptor, Query};
use quell_core::path::{PathReading, normalize};

use super::address::RemoteAddress;
use super::gate::Failure;
use super::path_pattern::{PathPattern, PathPatternError};

/// Entries that describe a request, and its cost.
///
/// ```
/// use axum::http::HeaderName;
/// use quell::tower::Entries;
/// let entries = Entries::new()
///     .method()
///     .path_pattern("/users/{user}/orders")?
///     .header("api_key", HeaderName::from_static("x-api-key"))
///     .cookie("session", "sid")
///     .with("language", |request| {
///         let value = request.headers.get("accept-language")?;
///         Some(value.as_bytes().get(..2)?.to_vec())
///     });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// If a request does not have an entry, or has it empty, its query lacks it, and a rule's `on_missing`
/// decides. If several sources have one name, the first that finds a value counts. Values are as long as the server
/// allows heads to be.
#[derive(Clone, Default)]
pub struct Entries {
    sources: Vec<Source>,
    cost: Option<ReadCost>,
    reading: PathReading,
}

type ReadCost = Arc<dyn Fn(&Parts) -> Cost + Send + Sync>;

/// The value of an entry, if the request has it.
type EntryValue<'r> = Result<Option<Cow<'r, [u8]>>, Failure>;

type ReadValue = Arc<dyn Fn(&Parts) -> EntryValue<'_> + Send + Sync>;

#[derive(Clone)]
enum Source {
    Path,
    Pattern(PathPattern),
    /// Any other entry, by its name.
    Entry(String, ReadValue),
}

/// Names of entries.
const PATH: &str = "path";
const PATTERN: &str = "path_pattern";
pub(super) const ADDRESS: &str = "remote_address";

impl Entries {
    /// No entries yet, and a cost of 1.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The entry `method`: `GET`, `POST` and so on.
    #[must_use]
    pub fn method(self) -> Self {
        self.read("method", |request| {
            Ok(Some(request.method.as_str().as_bytes().into()))
        })
    }

    /// The entry `path`, without its query and in its normal spelling ([`quell_core::path`]), as
    /// `/v1/authorize` of a server reads it: `/%6cogin`, `//login` and `/login/` are `/login`.
    ///
    /// A path that servers resolve differently, such as one with `%2F`, is answered 400. The routers of
    /// axum and tonic treat each spelling as another path; counting them together only limits more. For
    /// the path as it was sent, use `with("path", ..)`. Inside `Router::nest` the path is the nested
    /// router's.
    #[must_use]
    pub fn path(self) -> Self {
        self.push(Source::Path)
    }

    /// Sets how `path` and path patterns are read; by default [`PathReading::default`]. If case is ignored,
    /// rules must have paths in lower case; path patterns match in any case.
    #[must_use]
    pub const fn path_reading(mut self, reading: PathReading) -> Self {
        self.reading = reading;
        self
    }

    /// Entries from a path of this form, in its normal spelling as [`Entries::path`]: `{name}` is one
    /// segment and becomes the entry `name`; `{*name}` at the end is the rest of the path. The entry
    /// `path_pattern` is the pattern itself, so that a rule can count all users' orders together. Of
    /// several patterns the first that matches counts.
    ///
    /// # Errors
    /// [`PathPatternError`] if it is not a valid path pattern.
    pub fn path_pattern(self, pattern: &str) -> Result<Self, PathPatternError> {
        Ok(self.push(Source::Pattern(PathPattern::parse(pattern)?)))
    }

    /// The entry `entry` from a header field. If there are several lines, the first counts, unchanged.
    #[must_use]
    pub fn header(self, entry: impl Into<String>, header: HeaderName) -> Self {
        self.read(entry, move |request| {
            let value = request.headers.get(&header);
            Ok(value.map(|value| value.as_bytes().into()))
        })
    }

    /// The entry `entry` from the cookie `cookie`. If there are several, the first counts, unchanged.
    #[must_use]
    pub fn cookie(self, entry: impl Into<String>, cookie: impl Into<String>) -> Self {
        let name = cookie.into();
        self.read(entry, move |request| {
            Ok(find_cookie(request, &name).map(Cow::Borrowed))
        })
    }

    /// The entry `remote_address`: the client's address.
    #[must_use]
    pub fn remote_address(self, address: RemoteAddress) -> Self {
        self.read(ADDRESS, move |request| {
            let address = address.read(request)?;
            Ok(address.map(|address| address.to_string().into_bytes().into()))
        })
    }

    /// The entry `entry` from an extension that another layer, such as one that authenticates, added
    /// to the request before.
    ///
    /// ```
    /// use axum::extract::MatchedPath;
    /// use quell::tower::Entries;
    /// let entries = Entries::new()
    ///     .extension("route", |matched: &MatchedPath| Some(matched.as_str().to_owned()));
    /// # drop(entries);
    /// ```
    #[must_use]
    pub fn extension<T: Send + Sync + 'static, V: Into<Vec<u8>>>(
        self,
        entry: impl Into<String>,
        read: impl Fn(&T) -> Option<V> + Send + Sync + 'static,
    ) -> Self {
        self.with(entry, move |request| read(request.extensions.get()?))
    }

    /// The entry `entry` from anything in a request's head.
    #[must_use]
    pub fn with<V: Into<Vec<u8>>>(
        self,
        entry: impl Into<String>,
        read: impl Fn(&Parts) -> Option<V> + Send + Sync + 'static,
    ) -> Self {
        self.read(entry, move |request| {
            Ok(read(request).map(|value| Cow::Owned(value.into())))
        })
    }

    /// Sets how a request's cost is found in its head.
    #[must_use]
    pub fn cost(mut self, read: impl Fn(&Parts) -> Cost + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(read));
        self
    }

    fn read(
        self,
        entry: impl Into<String>,
        read: impl Fn(&Parts) -> EntryValue<'_> + Send + Sync + 'static,
    ) -> Self {
        self.push(Source::Entry(entry.into(), Arc::new(read)))
    }

    fn push(mut self, source: Source) -> Self {
        self.sources.push(source);
        self
    }

    /// The names of all entries, each once.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for source in &self.sources {
            let (name, pattern) = match source {
                Source::Path => (PATH, None),
                Source::Pattern(pattern) => (PATTERN, Some(pattern)),
                Source::Entry(entry, _) => (entry.as_str(), None),
            };
            let captured = pattern.into_iter().flat_map(PathPattern::names);
            for name in iter::once(name).chain(captured) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        names
    }

    /// The query for a request.
    pub(super) fn query<'r>(
        &'r self,
        domain: &'r str,
        request: &'r Parts,
    ) -> Result<Query<'r>, Failure> {
        let mut descriptor = Descriptor::new();
        let is_of_path = |source: &Source| !matches!(source, Source::Entry(..));
        let path = match self.sources.iter().any(is_of_path) {
            true => normalize(request.uri.path().as_bytes(), self.reading),
            false => Ok(Cow::Borrowed(&[][..])),
        };
        let path = path.map_err(Failure::Path)?;
        for source in &self.sources {
            source.add(request, path.clone(), self.reading, &mut descriptor)?;
        }
        if let Some(cost) = &self.cost {
            descriptor.cost = cost(request);
        }
        Ok(Query::with_descriptors(domain, vec![descriptor]))
    }
}

impl Source {
    fn add<'r>(
        &'r self,
        request: &'r Parts,
        path: Cow<'r, [u8]>,
        reading: PathReading,
        descriptor: &mut Descriptor<'r>,
    ) -> Result<(), Failure> {
        match self {
            Self::Path => add(descriptor, PATH, path),
            Self::Pattern(pattern) => {
                if descriptor.get(PATTERN).is_none()
                    && let Some(captured) = pattern.captures(&path, reading)
                {
                    descriptor.push(PATTERN, pattern.text());
                    for (name, value) in captured {
                        add(descriptor, name, value.to_vec());
                    }
                }
            }
            Self::Entry(entry, read) => {
                if let Some(value) = read(request)? {
                    add(descriptor, entry, value);
                }
            }
        }
        Ok(())
    }
}

/// Adds an entry unless there is one of that name with a value.
fn add<'r>(descriptor: &mut Descriptor<'r>, name: &'r str, value: impl Into<Cow<'r, [u8]>>) {
    if descriptor.get(name).is_none_or(<[u8]>::is_empty) {
        descriptor.push(name, value.into());
    }
}

/// The value of a cookie: `name=value`, between semicolons.
fn find_cookie<'r>(request: &'r Parts, name: &str) -> Option<&'r [u8]> {
    let lines = request.headers.get_all(COOKIE).iter();
    let mut pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    pairs.find_map(|pair| {
        let value = pair.trim_ascii().strip_prefix(name.as_bytes())?;
        value.strip_prefix(b"=")
    })
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entries")
            .field("names", &self.names())
            .finish_non_exhaustive()
    }
}
