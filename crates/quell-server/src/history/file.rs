//! File: a history on the disk, such as that of a server in its data directory.
//!
//! It is a chart's, so a file that cannot be read is not in the way of a start: the charts begin anew.

use std::path::PathBuf;

use parking_lot::Mutex;
use quell_host::history::{read, write};
use serde::{Deserialize, Serialize};

use super::{Change, Counts, History, MAX_CHANGES, Series, Span};
use crate::config::Config;

/// First bytes of a server's file: its format. After it come a CRC-32 of the rest, and the rest.
const FORMAT: &[u8] = b"quell history 2\n";

/// Contents of the file.
#[derive(Default, Serialize, Deserialize)]
struct HistoryFile {
    hour: Series<Counts>,
    day: Series<Counts>,
    changes: Vec<Change>,
}

/// Path of a server's history; none if it has no console or no data directory.
fn path(config: &Config) -> Option<PathBuf> {
    let directory = config.data_dir.as_ref().filter(|_| config.console)?;
    Some(directory.join("history.quell"))
}

impl History {
    /// The history that the server wrote last.
    pub(crate) fn read(config: &Config) -> Self {
        let Some(path) = path(config) else {
            return Self::default();
        };
        let kept = read(&path, FORMAT).unwrap_or_else(|error| {
            let file = path.display();
            tracing::warn!(%file, %error, "cannot read the console's history; a new one begins");
            HistoryFile::default()
        });
        Self::restore(kept)
    }

    fn restore(mut kept: HistoryFile) -> Self {
        for (series, span) in [(&mut kept.hour, Span::Hour), (&mut kept.day, Span::Day)] {
            series.keep(span.steps().1);
        }
        let beyond = kept.changes.len().saturating_sub(MAX_CHANGES);
        Self {
            series: Mutex::new([Series::default(), kept.hour, kept.day]),
            changes: Mutex::new(kept.changes.split_off(beyond).into()),
            ..Self::default()
        }
    }

    /// Writes it, for a restart. Waits for the disk; a failure is logged, and harms nothing else.
    pub(crate) fn write(&self, config: &Config) {
        let Some(path) = path(config) else {
            return;
        };
        let _writing = self.writing.lock();
        let kept = HistoryFile {
            hour: self.series(Span::Hour),
            day: self.series(Span::Day),
            changes: self.changes.lock().iter().cloned().collect(),
        };
        if let Err(error) = write(&path, FORMAT, &kept) {
            let file = path.display();
            tracing::warn!(%file, %error, "cannot write the console's history");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::history::Point;

    #[test]
    fn the_hour_the_day_and_changes_survive_and_a_damaged_file_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config {
            data_dir: Some(folder.path().to_owned()),
            ..Config::default()
        };
        let history = History::read(&config);
        for second in 0..4_000 {
            history.add(&Point {
                at: 1_700_000_000 + second,
                millis: 1_000,
                counts: Counts {
                    allowed: 3,
                    degraded: 1,
                    ..Counts::default()
                },
            });
        }
        for number in 0..=MAX_CHANGES {
            history.note(Change {
                at: 1_700_000_000,
                domain: Some("shop".to_owned()),
                by: "the user `ada`".to_owned(),
                from: "127.0.0.1".to_owned(),
                what: format!("change {number}"),
                reason: String::new(),
            });
        }
        history.write(&config);
        let again = History::read(&config);
        for span in [Span::Hour, Span::Day] {
            assert_eq!(again.points(span), history.points(span), "{span:?}");
        }
        assert_eq!((again.points(Span::Hour).len(), again.last()), (360, None));
        let changes = again.changes();
        assert_eq!(
            (changes.len(), &*changes[0].what),
            (MAX_CHANGES, "change 100")
        );

        let path = path(&config).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut bytes = fs::read(&path).unwrap();
        assert!(bytes.len() < 64 * 1_024, "{} bytes", bytes.len());
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(History::read(&config).points(Span::Day), []);
        fs::write(&path, FORMAT).unwrap();
        assert_eq!(History::read(&config).points(Span::Day), []);
    }
}
