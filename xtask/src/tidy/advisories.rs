//! Advisories: no dependency has a version that `xtask/advisories.toml` knows to be bad.
//!
//! The list is a copy, with its date, since this check needs no network. CONTRIBUTING.md says when it is renewed.
//! Versions that were yanked are found when the crates are packed.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::semver::{Version, VersionReq};

use crate::finding::Finding;
use crate::tidy::dependencies;

const LIST: &str = "xtask/advisories.toml";

/// Versions of a crate with a defect that was published.
#[derive(Debug)]
struct Advisory {
    name: String,
    versions: VersionReq,
    id: String,
}

/// Checks the lock file against the list.
///
/// # Errors
///
/// When the list or the lock file cannot be read.
pub(crate) fn check(root: &Path) -> Result<Vec<Finding>> {
    let text =
        fs::read_to_string(root.join(LIST)).with_context(|| format!("cannot read {LIST}"))?;
    let advisories = parse(&text)?;
    Ok(find(&advisories, &dependencies::locked_versions(root)?))
}

fn parse(text: &str) -> Result<Vec<Advisory>> {
    let list: toml::Table = text.parse().with_context(|| format!("{LIST} is no TOML"))?;
    let rows = list.get("advisory").and_then(toml::Value::as_array);
    let rows = rows.with_context(|| format!("{LIST} has no [[advisory]]"))?;
    let advisory = |row: &toml::Value| {
        let field = |name: &str| {
            let value = row.get(name).and_then(toml::Value::as_str);
            value
                .map(str::to_owned)
                .with_context(|| format!("{LIST}: a row has no `{name}`: {row}"))
        };
        let versions = VersionReq::parse(&field("versions")?)?;
        Ok(Advisory {
            name: field("crate")?,
            versions,
            id: field("id")?,
        })
    };
    rows.iter().map(advisory).collect()
}

fn find(advisories: &[Advisory], locked: &[(String, Version)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for Advisory { name, versions, id } in advisories {
        let mut of_crate = locked
            .iter()
            .filter(|(locked, _)| locked == name)
            .peekable();
        if of_crate.peek().is_none() {
            let message = format!("no dependency is {name}: leave {id} out");
            findings.push(Finding::in_file(LIST, message));
        }
        let bad = of_crate.filter(|(_, version)| versions.matches(version));
        findings.extend(bad.map(|(_, version)| {
            let message =
                format!("{name} {version} has {id} ({versions}): `cargo update -p {name}`");
            Finding::in_file("Cargo.lock", message)
        }));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{assert_none, assert_one};
    use crate::repository::Repository;

    #[test]
    fn this_repository_passes() {
        assert_none(&check(&Repository::load().unwrap().root).unwrap());
    }

    #[test]
    fn a_version_that_is_known_to_be_bad_is_found() {
        let list = "[[advisory]]\ncrate = \"h2\"\nversions = \"<0.4.16\"\nid = \"RUSTSEC-1\"\n";
        let advisories = parse(list).unwrap();
        let found = |version: &str| {
            let locked = [("h2".to_owned(), Version::parse(version).unwrap())];
            find(&advisories, &locked)
        };
        assert_none(&found("0.4.16"));
        assert_one(&found("0.4.15"), "h2 0.4.15 has RUSTSEC-1");
        assert_one(&find(&advisories, &[]), "no dependency is h2");
        assert!(parse("[[advisory]]\ncrate = \"h2\"\n").is_err());
    }
}
