//! The console stays small: who runs Quell should be able to read all of it.
//!
//! A line counts if it is not blank, no comment and in no test module: Rust, templates, and the scripts and
//! styles that are our own. Assets are all bytes that a browser is sent besides pages, ours and vendored.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::finding::Finding;
use crate::repository::walk;

/// What the paths of the consoles of servers and of coordinators begin with.
const PLACES: [&str; 4] = [
    "crates/quell-server/src/http/console",
    "crates/quell-server/templates/",
    "crates/quell-cli/src/fleet/console",
    "crates/quell-cli/templates/",
];

/// What the path of vendored files has.
const VENDORED: &str = "/vendored/";

/// The most lines of code.
const MOST_LINES: usize = 4_000;

/// The most bytes of assets.
const MOST_BYTES: usize = 150 * 1_024;

/// What begins the test module of a file.
const TESTS: &str = "#[cfg(test)]\nmod tests";

/// Counts the console's lines and the bytes of its assets.
pub(crate) fn check(root: &Path) -> Result<Vec<Finding>> {
    let (mut lines, mut bytes) = (0, 0);
    for path in walk(root)? {
        if !PLACES.iter().any(|place| path.starts_with(place)) {
            continue;
        }
        let ending = Path::new(&path).extension().and_then(|end| end.to_str());
        let (is_code, is_asset) = match ending {
            Some("rs" | "html") => (true, false),
            Some("js" | "css" | "svg") => (!path.contains(VENDORED), true),
            _ => continue,
        };
        let text = fs::read_to_string(root.join(&path));
        let text = text.with_context(|| format!("cannot read {path}"))?;
        lines += if is_code { count(&text) } else { 0 };
        bytes += if is_asset { text.len() } else { 0 };
    }
    Ok(judge(lines, bytes))
}

fn judge(lines: usize, bytes: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |text: String| findings.push(Finding::in_file(PLACES[0], text));
    if lines > MOST_LINES {
        add(format!(
            "the console has {lines} lines of code; {MOST_LINES} at the most"
        ));
    }
    if bytes > MOST_BYTES {
        add(format!(
            "its assets have {bytes} bytes; {MOST_BYTES} at the most"
        ));
    }
    if lines == 0 || bytes == 0 {
        add("the console has moved: nothing was counted".to_owned());
    }
    findings
}

/// The lines of code of a text.
fn count(text: &str) -> usize {
    let (code, _) = text.split_once(TESTS).unwrap_or((text, ""));
    let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//");
    code.lines().map(str::trim).filter(is_code).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::Repository;

    #[test]
    fn the_console_is_small() {
        let repository = Repository::load().unwrap();
        assert_eq!(check(&repository.root).unwrap(), []);
    }

    #[test]
    fn what_is_too_large_or_gone_is_found() {
        assert_eq!(judge(MOST_LINES, MOST_BYTES).len(), 0);
        assert_eq!(judge(MOST_LINES + 1, MOST_BYTES + 1).len(), 2);
        assert_eq!(judge(0, 1).len(), 1);
        let text =
            "//! About\n\nfn a() {\n    // Why.\n    b();\n}\n\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(count(text), 3);
    }
}
