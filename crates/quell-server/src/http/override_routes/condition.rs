//! Condition: a change that depends on what the caller saw (RFC 9110, 13.1).

use axum::http::HeaderMap;
use axum::http::header::{HeaderName, IF_MATCH, IF_NONE_MATCH};
use quell::override_store::StoredOverride;
use quell_protocol::http::Problem;

use crate::http::reply;

/// Condition of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Condition {
    /// None.
    Nothing,
    /// `If-None-Match: *`: there is no override.
    Absent,
    /// `If-Match: *`: there is one.
    Present,
    /// `If-Match: "7"`: it has this revision.
    Revision(u64),
    /// A form showed this revision, which is no wish to end what stands.
    Shown(u64),
}

impl Condition {
    pub(super) fn read(headers: &HeaderMap) -> Result<Self, Box<Problem>> {
        let fields = [IF_MATCH, IF_NONE_MATCH].map(|name| field(headers, &name));
        match fields {
            [Ok(None), Ok(None)] => Ok(Self::Nothing),
            [Ok(None), Ok(Some("*"))] => Ok(Self::Absent),
            [Ok(Some("*")), Ok(None)] => Ok(Self::Present),
            [Ok(Some(tag)), Ok(None)] => {
                let revision = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
                let revision = revision.and_then(|revision| revision.parse().ok());
                revision.map(Self::Revision).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }

    /// Whether the condition may be about the other override of the key.
    pub(super) fn needs_other(self, own: Option<&StoredOverride>) -> bool {
        let own = own.map_or(0, |own| own.revision);
        matches!(self, Self::Revision(seen) | Self::Shown(seen) if seen != own)
    }

    /// The revision that the store is to expect, for a change of the first of the two overrides of a key, which have
    /// these revisions, 0 for none. The caller may have seen its revision, or the higher of both, which is that of the
    /// key.
    ///
    /// # Errors
    /// The revision that there is, if the condition does not hold.
    pub(super) fn of_put(self, [own, other]: [u64; 2]) -> Result<Option<u64>, u64> {
        let holds = match self {
            Self::Nothing => return Ok(None),
            Self::Absent => own == 0,
            Self::Present => own > 0,
            Self::Revision(seen) | Self::Shown(seen) => seen == own || seen == own.max(other),
        };
        if holds { Ok(Some(own)) } else { Err(own) }
    }

    /// Whether the store is to expect the revisions of the overrides that are deleted, which are these, 0 for none. The
    /// caller saw the highest.
    ///
    /// # Errors
    /// The revision that there is, if the condition does not hold.
    pub(super) fn of_delete(self, all: &[u64]) -> Result<bool, u64> {
        let newest = all.iter().copied().max().unwrap_or_default();
        let holds = match self {
            Self::Nothing => return Ok(false),
            Self::Absent => newest == 0,
            Self::Present => newest > 0,
            Self::Revision(seen) | Self::Shown(seen) => seen == newest,
        };
        if holds { Ok(true) } else { Err(newest) }
    }
}

/// The only value of a field.
fn field<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, ()> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value
            .to_str()
            .map(|value| Some(value.trim()))
            .map_err(|_| ()),
        _ => Err(()),
    }
}

fn wrong() -> Box<Problem> {
    let detail = "the condition is not understood: write If-Match: \"7\" with the revision that you saw, or \
                  If-None-Match: * for a new override";
    reply::invalid(detail.to_owned())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn read(fields: &[(HeaderName, &str)]) -> Result<Condition, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        Condition::read(&headers).map_err(|problem| problem.detail.unwrap_or_default())
    }

    #[test]
    fn fields_make_one_condition() {
        assert_eq!(read(&[]), Ok(Condition::Nothing));
        assert_eq!(read(&[(IF_MATCH, "\"7\"")]), Ok(Condition::Revision(7)));
        assert_eq!(read(&[(IF_MATCH, "*")]), Ok(Condition::Present));
        assert_eq!(read(&[(IF_NONE_MATCH, "*")]), Ok(Condition::Absent));
        for wrong in [
            &[(IF_MATCH, "7")][..],
            &[(IF_MATCH, "W/\"7\"")],
            &[(IF_MATCH, "\"7\", \"8\"")],
            &[(IF_MATCH, "\"7\""), (IF_MATCH, "\"8\"")],
            &[(IF_NONE_MATCH, "\"7\"")],
            &[(IF_MATCH, "*"), (IF_NONE_MATCH, "*")],
        ] {
            let detail = read(wrong).unwrap_err();
            assert!(detail.contains("write If-Match: \"7\""), "{wrong:?}");
        }
    }

    /// The caller saw the record, or the key that has two.
    #[test]
    fn what_the_caller_saw_is_what_the_store_expects() {
        let seen = Condition::Revision;
        assert_eq!(Condition::Nothing.of_put([3, 9]), Ok(None));
        assert_eq!(Condition::Absent.of_put([0, 9]), Ok(Some(0)));
        assert_eq!(Condition::Absent.of_put([3, 9]), Err(3));
        assert_eq!(Condition::Present.of_put([3, 0]), Ok(Some(3)));
        assert_eq!(Condition::Present.of_put([0, 9]), Err(0));
        assert_eq!(seen(3).of_put([3, 9]), Ok(Some(3)));
        assert_eq!(seen(9).of_put([3, 9]), Ok(Some(3)));
        assert_eq!(seen(9).of_put([10, 9]), Err(10));
        assert_eq!(seen(2).of_put([3, 0]), Err(3));
        assert_eq!(Condition::Nothing.of_delete(&[3, 9]), Ok(false));
        assert_eq!(seen(9).of_delete(&[3, 9]), Ok(true));
        assert_eq!(seen(3).of_delete(&[3, 9]), Err(9));
        assert_eq!(seen(3).of_delete(&[3]), Ok(true));
        assert_eq!(Condition::Present.of_delete(&[0, 0]), Err(0));
    }
}
