//! The bodies of `/v1/settle`, `/v1/cancel`, `/v1/release` and `/v1/renew`, and their answers.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use quell_core::actual::Actual;
use quell_core::hold::MAX_ID;
use quell_core::query_bounds::{check_descriptors, check_domain};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::json::{BodyError, Path, read};

/// An example, for clients that wrote something else.
const EXAMPLE: &str = r#"{"domain": "models", "id": "job-1"}"#;

/// The hold to end or renew.
///
/// ```json
/// {"domain": "models", "id": "job-1", "actual": 1500}
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct EndBody<'a> {
    /// The domain in which it is held.
    #[serde(borrow)]
    pub domain: Cow<'a, str>,
    /// Its id.
    #[serde(borrow)]
    #[cfg_attr(
        feature = "openapi",
        schemars(length(min = 1, max = MAX_ID), regex(pattern = "^[!-~]+$"))
    )]
    pub id: Cow<'a, str>,
    /// The real cost: a number, or for several descriptors a list with one for each; only for `/v1/settle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(schema_with = "actual_schema"))]
    pub actual: Option<ActualBody>,
    /// True if the work failed for lack of room or time, on which a limit that learns its ceiling (`adaptive`) comes
    /// down by a tenth; only for `/v1/release`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(extend("default" = false)))]
    pub failed: Option<bool>,
}

/// Final costs of the descriptors of a reservation: a number, or a list of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActualBody(pub Actual);

#[cfg(feature = "openapi")]
fn actual_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let units = serde_json::json!({"type": "integer", "minimum": 0});
    let most = quell_core::query_bounds::MAX_DESCRIPTORS;
    let each =
        serde_json::json!({"type": "array", "minItems": 1, "maxItems": most, "items": units});
    schemars::json_schema!({"oneOf": [units, each]})
}

impl Serialize for ActualBody {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.units() {
            [units] => units.serialize(serializer),
            each => each.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ActualBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ActualVisitor)
    }
}

struct ActualVisitor;

impl<'de> Visitor<'de> for ActualVisitor {
    type Value = ActualBody;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, or a list with one for each descriptor")
    }

    fn visit_u64<E: Error>(self, units: u64) -> Result<ActualBody, E> {
        Ok(ActualBody(units.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ActualBody, A::Error> {
        let mut units: Vec<u64> = Vec::new();
        while let Some(one) = list.next_element()? {
            units.push(one);
            check_descriptors(units.len()).map_err(A::Error::custom)?;
        }
        check_descriptors(units.len()).map_err(A::Error::custom)?;
        Ok(ActualBody(units.into()))
    }
}

/// Outcome of the end of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct EndedBody<'a> {
    /// Its id.
    pub id: Cow<'a, str>,
    /// Outcome, now or before.
    #[cfg_attr(
        feature = "openapi",
        schemars(extend("enum" = ["settled", "cancelled", "released", "expired", "stands"]))
    )]
    pub outcome: Cow<'a, str>,
    /// True if the hold had ended before, and nothing changed.
    pub repeated: bool,
}

/// Reads the request to end a hold.
///
/// # Errors
/// [`BodyError`] with a pointer to what is wrong.
pub fn parse_end(body: &[u8]) -> Result<EndBody<'_>, BodyError> {
    let path = Path::default();
    let read = read(body, &path, PhantomData::<EndBody<'_>>, EXAMPLE)?;
    let field = |pointer: &str, reason: String| BodyError::Field {
        pointer: pointer.to_owned(),
        reason,
    };
    check_domain(&read.domain).map_err(|error| field("/domain", error.to_string()))?;
    if read.id.is_empty() || read.id.len() > MAX_ID {
        let reason = format!("an id has 1 to {MAX_ID} characters: write that of the reservation");
        return Err(field("/id", reason));
    }
    Ok(read)
}
