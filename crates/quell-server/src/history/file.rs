//! File: the history of a server in its data directory.
//!
//! It is a chart's, so a file that cannot be read is not in the way of a start: the charts begin anew.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use quell_fleet::disk::replace;
use serde::{Deserialize, Serialize};

use super::{Change, History, MOST_CHANGES, Point, Series, Span};
use crate::config::Config;

/// What a file begins with: its format. After it come a CRC-32 of the rest, and the rest.
const FORMAT: &[u8] = b"quell history 1\n";

/// Longest file that is read: far more than the longest that is written.
const MOST_BYTES: u64 = 4 * 1_024 * 1_024;

/// What is kept.
#[derive(Default, Serialize, Deserialize)]
struct Kept {
    hour: Vec<Point>,
    day: Vec<Point>,
    changes: Vec<Change>,
}

/// Where the history of a server is; none if it has no console or no data directory.
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
        match read(&path) {
            Ok(kept) => Self::restore(kept),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::default(),
            Err(error) => {
                let file = path.display();
                tracing::warn!(%file, %error, "the console's history cannot be read: it begins anew");
                Self::default()
            }
        }
    }

    fn restore(mut kept: Kept) -> Self {
        let series = |points: &mut Vec<Point>, span: Span| {
            let (_, most) = span.steps();
            let points = points.split_off(points.len().saturating_sub(most));
            Series(points.into())
        };
        let hour = series(&mut kept.hour, Span::Hour);
        let day = series(&mut kept.day, Span::Day);
        let beyond = kept.changes.len().saturating_sub(MOST_CHANGES);
        Self {
            series: Mutex::new([Series::default(), hour, day]),
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
        let kept = Kept {
            hour: self.points(Span::Hour),
            day: self.points(Span::Day),
            changes: self.changes.lock().iter().cloned().collect(),
        };
        if let Err(error) = write(&path, &kept) {
            let file = path.display();
            tracing::warn!(%file, %error, "the console's history cannot be written");
        }
    }
}

fn read(path: &Path) -> io::Result<Kept> {
    let metadata = fs::metadata(path)?;
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "it is damaged");
    if !metadata.is_file() || metadata.len() > MOST_BYTES {
        return Err(damaged());
    }
    let bytes = fs::read(path)?;
    let rest = bytes.strip_prefix(FORMAT).ok_or_else(damaged)?;
    let (sum, rest) = rest.split_first_chunk().ok_or_else(damaged)?;
    if u32::from_le_bytes(*sum) != crc32fast::hash(rest) {
        return Err(damaged());
    }
    postcard::from_bytes(rest).map_err(|_| damaged())
}

fn write(path: &Path, kept: &Kept) -> io::Result<()> {
    let rest = postcard::to_stdvec(kept).map_err(io::Error::other)?;
    let sum = crc32fast::hash(&rest).to_le_bytes();
    replace(path, &[FORMAT, &sum, &rest])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::history::Counts;

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
        for number in 0..=MOST_CHANGES {
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
            (MOST_CHANGES, "change 100")
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
