//! Pulled rules: the first line of a file that was pulled, which says what a push of it expects.

use quell::rule_store::{Entry, Head};

use crate::wait::instant;

/// Beginning of the line.
const BEGINNING: &str = "# quell rules: version ";

/// The version that a text was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its number.
    pub number: u64,
    /// Known if it stood in a file.
    pub digest: Option<String>,
}

impl Origin {
    /// Returns true if `head` is that version.
    pub(crate) fn is(&self, head: Option<&Head>) -> bool {
        head.is_some_and(|head| {
            let digest = self.digest.as_deref();
            head.number() == self.number && digest.is_none_or(|digest| head.digest() == digest)
        })
    }
}

/// The line that is written above a version that is pulled.
#[must_use]
pub fn line(entry: &Entry) -> String {
    let (number, digest) = (entry.head.number(), entry.head.digest());
    let (who, when) = (&entry.who, instant(entry.at_ms));
    format!("{BEGINNING}{number} ({digest}), pushed by {who} at {when}")
}

/// The text without that line, and what the line says, if it stands there.
#[must_use]
pub fn take_line(text: &str) -> (Option<Origin>, &str) {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    match read(first) {
        Some(origin) => (Some(origin), rest),
        None => (None, text),
    }
}

fn read(line: &str) -> Option<Origin> {
    let (number, rest) = line.strip_prefix(BEGINNING)?.split_once(" (")?;
    let (digest, _) = rest.split_once(')')?;
    Some(Origin {
        number: number.parse().ok()?,
        digest: Some(digest.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_taken_off_and_nothing_else() {
        let line = "# quell rules: version 7 (1f2e3d4c5b6a), pushed by ann at 2026-01-01T00:00:00Z";
        let origin = Origin {
            number: 7,
            digest: Some("1f2e3d4c5b6a".to_owned()),
        };
        let text = format!("{line}\n# ours\ndomain: d\n");
        assert_eq!(take_line(&text), (Some(origin), "# ours\ndomain: d\n"));
        for text in [
            "",
            "domain: d",
            "# quell rules: version x (a)\n",
            "\n# quell rules: version 7 (a)\n",
        ] {
            assert_eq!(take_line(text), (None, text));
        }
    }
}
