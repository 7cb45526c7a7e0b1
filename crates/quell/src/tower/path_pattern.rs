//! Path pattern: paths that count as one, and which parts of them distinguish keys.

use quell_core::path::{PathReading, normalize};

/// `/users/{user}/orders`: literal segments, named ones, and an optional named rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathPattern {
    text: String,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    /// Exactly one segment, not empty.
    Named(String),
    /// The rest of the path, including `/`, not empty.
    Rest(String),
}

impl PathPattern {
    pub(super) fn parse(text: &str) -> Result<Self, PathPatternError> {
        let wrong = |reason| PathPatternError {
            text: text.to_owned(),
            reason,
        };
        let Some(path) = text.strip_prefix('/') else {
            return Err(wrong("begin it with /"));
        };
        let mut segments = Vec::new();
        for part in path.split('/') {
            if matches!(segments.last(), Some(Segment::Rest(_))) {
                return Err(wrong("write {*name} at the end only"));
            }
            let inside = part.strip_prefix('{').and_then(|p| p.strip_suffix('}'));
            let segment = match inside {
                None => Segment::Literal(part.to_owned()),
                Some(name) => match name.strip_prefix('*') {
                    Some(rest) => Segment::Rest(rest.to_owned()),
                    None => Segment::Named(name.to_owned()),
                },
            };
            let (Segment::Literal(name) | Segment::Named(name) | Segment::Rest(name)) = &segment;
            if name.contains(['{', '}', '*']) {
                return Err(wrong(
                    "write {name} or {*name} between two /, and nothing beside it",
                ));
            }
            if name.is_empty() && inside.is_some() {
                return Err(wrong("write a name between the braces"));
            }
            if inside.is_none() && !path.is_empty() && !is_normal(name) {
                return Err(wrong(
                    "paths are read without a slash at the end, empty segments, dots, `;` and needless escapes, and with needed ones such as %C3%A9: write it so",
                ));
            }
            segments.push(segment);
        }
        Ok(Self {
            text: text.to_owned(),
            segments,
        })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Literal(_) => None,
            Segment::Named(name) | Segment::Rest(name) => Some(name.as_str()),
        })
    }

    /// The named segments of `path`, if the normalized path matches.
    pub(super) fn captures<'s, 'p>(
        &'s self,
        path: &'p [u8],
        reading: PathReading,
    ) -> Option<Vec<(&'s str, &'p [u8])>> {
        let is_same = |literal: &[u8], part: &[u8]| match reading.ignore_case {
            true => literal.eq_ignore_ascii_case(part),
            false => literal == part,
        };
        let mut rest = Some(path.strip_prefix(b"/")?);
        let mut captured = Vec::new();
        for segment in &self.segments {
            let left = rest?;
            if let Segment::Rest(name) = segment {
                rest = None;
                captured.push((name.as_str(), left));
                continue;
            }
            let mut parts = left.splitn(2, |byte| *byte == b'/');
            let part = parts.next().unwrap_or_default();
            rest = parts.next();
            match segment {
                Segment::Literal(literal) if is_same(literal.as_bytes(), part) => {}
                Segment::Named(name) => captured.push((name.as_str(), part)),
                _ => return None,
            }
        }
        let is_whole = rest.is_none() && captured.iter().all(|(_, value)| !value.is_empty());
        is_whole.then_some(captured)
    }
}

/// Returns true if a segment is in the normal spelling of paths.
fn is_normal(segment: &str) -> bool {
    let path = format!("/{segment}");
    let read = normalize(path.as_bytes(), PathReading::default());
    !segment.is_empty() && read.is_ok_and(|read| *read == *path.as_bytes())
}

/// A text that is not a path pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no path pattern: {reason}, as in /users/{{user}}/files/{{*file}}")]
pub struct PathPatternError {
    text: String,
    reason: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_fit_segment_by_segment() {
        for (pattern, path, expected) in [
            ("/", "/", Some("")),
            ("/", "/a", None),
            ("/users/{user}", "/users/7", Some("user=7")),
            ("/users/{user}", "/users/7/", None),
            ("/users/{user}", "/users/", None),
            ("/users/{user}", "/users", None),
            ("/users/{user}", "/Users/7", None),
            ("/{a}/x/{b}", "/1/x/2", Some("a=1 b=2")),
            ("/{a}/x/{b}", "/1/y/2", None),
            ("/files/{*file}", "/files/a/b.txt", Some("file=a/b.txt")),
            ("/files/{*file}", "/files/", None),
            ("/files/{*file}", "/files", None),
            ("/a", "a", None),
            ("/a", "*", None),
        ] {
            let pattern = PathPattern::parse(pattern).unwrap();
            let captured = pattern.captures(path.as_bytes(), PathReading::default());
            let captured = captured.map(|captured| {
                let pairs = captured
                    .iter()
                    .map(|(name, value)| format!("{name}={}", value.escape_ascii()));
                pairs.collect::<Vec<_>>().join(" ")
            });
            assert_eq!(captured.as_deref(), expected, "{pattern:?} {path}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (pattern, words) in [
            ("users", "begin it with /"),
            ("/a{b}", "nothing beside it"),
            ("/{a}b", "nothing beside it"),
            ("/{}", "a name between"),
            ("/{*}", "a name between"),
            ("/*", "write {name} or {*name}"),
            ("/{*a}/b", "at the end only"),
            ("/a/", "without a slash at the end"),
            ("/a//b", "without a slash at the end"),
            ("/a;b/{c}", "`;`"),
            ("/%61", "needless escapes"),
        ] {
            let error = PathPattern::parse(pattern).unwrap_err().to_string();
            assert!(error.contains(words), "{pattern}: {error}");
        }
    }
}
