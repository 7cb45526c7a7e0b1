//! Rules in a directory: a [`RuleStore`] of one machine, without a server.
//!
//! Each version is a file that is written once: lines of what is known of it, and then its text. A push links
//! a finished file to the name of the next number, which fails if there is one. So processes of one machine
//! may push at once, and a crash leaves whole versions only.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::{
    Draft, Entry, Head, KEPT_BYTES, PushOutcome, Reply, RuleStore, RuleStoreError, Version, leaving,
};

/// Number of versions that are kept; older ones are dropped as new ones come.
const KEPT: u64 = 1_000;

/// Prefix of the URL.
const SCHEME: &str = "file://";

/// The first line of a version: the format.
const FORMAT: &str = "quell rules 1";

/// Extension of a version's file name; before it comes the number.
const ENDING: &str = "version";

/// The longest file that is read, in bytes: more than any text that is pushed by hand.
const MAX_BYTES: u64 = 64 * 1_024 * 1_024;

/// The rules in a directory. It does not tell of changes: who follows looks once a second.
#[derive(Clone, Debug)]
pub struct DirectoryRules {
    directory: PathBuf,
    url: String,
    kept_bytes: u64,
}

impl DirectoryRules {
    /// The rules in this directory, which the first push makes.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        let directory = directory.into();
        let url = format!("{SCHEME}{}", directory.display());
        Self {
            directory,
            url,
            kept_bytes: KEPT_BYTES,
        }
    }

    /// The same with at most so many bytes of versions. Default: [`KEPT_BYTES`].
    #[must_use]
    pub const fn with_kept_bytes(mut self, bytes: u64) -> Self {
        self.kept_bytes = bytes;
        self
    }

    /// The directory that a URL names, such as `file:///var/lib/quell/rules`; `None` if it is another URL.
    ///
    /// # Errors
    /// If the URL names none, with what to write.
    pub fn parse(url: &str) -> Option<Result<Self, String>> {
        let path = url.strip_prefix(SCHEME)?;
        let named = (!path.is_empty()).then(|| Self::new(path));
        Some(named.ok_or_else(|| {
            "`file://` names no directory: write one, such as file:///var/lib/quell/rules"
                .to_owned()
        }))
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number}.{ENDING}"))
    }

    /// Does work on the disk aside from calls.
    fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, RuleStoreError> + Send + 'static,
    ) -> Reply<'static, T> {
        let own = self.clone();
        Box::pin(async move {
            let done = tokio::task::spawn_blocking(move || work(&own)).await;
            let interrupted = |_| {
                Err(RuleStoreError::Unknown(
                    "the work was interrupted".to_owned(),
                ))
            };
            done.unwrap_or_else(interrupted)
        })
    }

    fn failed(&self, error: &io::Error) -> RuleStoreError {
        RuleStoreError::NoAnswer(format!("{}: {error}", self.directory.display()))
    }

    /// A file that is in the way of every version after it.
    fn foreign(path: &Path) -> RuleStoreError {
        let path = path.display();
        RuleStoreError::NoAnswer(format!("{path} is no version of rules: move it away"))
    }

    /// The numbers of the versions, the highest first.
    fn numbers(&self) -> Result<Vec<u64>, RuleStoreError> {
        let files = match fs::read_dir(&self.directory) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.failed(&error)),
        };
        let names = files.filter_map(|file| Some(PathBuf::from(file.ok()?.file_name())));
        let numbers = names.filter_map(|name| {
            let is_version = name.extension() == Some(OsStr::new(ENDING));
            let number = name.file_stem().filter(|_| is_version)?;
            number.to_str()?.parse().ok()
        });
        let mut numbers: Vec<u64> = numbers.collect();
        numbers.sort_unstable_by(|one, other| other.cmp(one));
        Ok(numbers)
    }

    /// A version without its text, and the rest of its file.
    fn entry(&self, number: u64) -> Result<Option<(Entry, impl io::Read)>, RuleStoreError> {
        let path = self.path(number);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed(&error)),
        };
        let mut file = BufReader::new(file.take(MAX_BYTES));
        let mut line = || {
            let mut line = String::new();
            let read = file.read_line(&mut line);
            read.map_err(|_| Self::foreign(&path))?;
            let text = line.strip_suffix('\n');
            text.map(str::to_owned).ok_or_else(|| Self::foreign(&path))
        };
        let (format, head, at_ms) = (line()?, line()?, line()?);
        let (who, change, note) = (line()?, line()?, line()?);
        let head = Head::parse(&head).filter(|head| head.number() == number && format == FORMAT);
        let (Some(head), Ok(at_ms)) = (head, at_ms.parse()) else {
            return Err(Self::foreign(&path));
        };
        let draft = Draft {
            text: "",
            who: &who,
            change: &change,
            note: &note,
        };
        Ok(Some((Entry::new(head, at_ms, &draft), file)))
    }

    fn newest(&self) -> Result<Option<Head>, RuleStoreError> {
        let Some(number) = self.numbers()?.first().copied() else {
            return Ok(None);
        };
        let entry = self.entry(number)?;
        Ok(entry.map(|(entry, _)| entry.head))
    }

    fn read(&self, number: u64) -> Result<Option<Version>, RuleStoreError> {
        let Some((entry, mut rest)) = self.entry(number)? else {
            return Ok(None);
        };
        let what = self.path(number).display().to_string();
        let mut text = String::new();
        let read = rest.read_to_string(&mut text);
        read.map_err(|_| RuleStoreError::damaged(&*what, "is no text"))?;
        Version::new(entry, text, &what).map(Some)
    }

    /// Adds a version if there is none with its number. Returns whether there was none.
    fn add(&self, version: &Version) -> io::Result<bool> {
        static UNFINISHED: AtomicU64 = AtomicU64::new(0);
        let number = UNFINISHED.fetch_add(1, Ordering::Relaxed);
        fs::create_dir_all(&self.directory)?;
        let unfinished = format!("unfinished-{}-{number}", process::id());
        let unfinished = self.directory.join(unfinished);
        let added = write(&unfinished, version)
            .and_then(|()| fs::hard_link(&unfinished, self.path(version.number())));
        fs::remove_file(&unfinished).ok();
        match added {
            Ok(()) => {
                // The name is on the disk too, where directories can be synced.
                File::open(&self.directory)
                    .and_then(|it| it.sync_all())
                    .ok();
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes versions that are not kept any more.
    fn drop_oldest(&self) -> Result<(), RuleStoreError> {
        let sizes = self.numbers()?.into_iter().map(|number| {
            let file = fs::metadata(self.path(number));
            (number, file.map_or(0, |file| file.len()))
        });
        for number in leaving(sizes, KEPT, self.kept_bytes) {
            fs::remove_file(self.path(number)).ok();
        }
        Ok(())
    }

    fn add_after(
        &self,
        from: Option<&Head>,
        version: &Version,
    ) -> Result<PushOutcome, RuleStoreError> {
        let is_newest = self.newest()?.as_ref() == from;
        let is_added = is_newest && self.add(version).map_err(|error| self.failed(&error))?;
        if is_added {
            self.drop_oldest()?;
        }
        match self.newest()? {
            Some(head) if head == *version.head() => Ok(PushOutcome::Done(head)),
            _ if is_added => Ok(PushOutcome::Done(version.head().clone())),
            other => Ok(PushOutcome::Overtaken(other)),
        }
    }
}

fn write(path: &Path, version: &Version) -> io::Result<()> {
    let Entry {
        head,
        at_ms,
        who,
        change,
        note,
    } = &version.entry;
    let mut file = File::create(path)?;
    let text = &version.text;
    write!(
        file,
        "{FORMAT}\n{head}\n{at_ms}\n{who}\n{change}\n{note}\n{text}"
    )?;
    file.sync_all()
}

impl RuleStore for DirectoryRules {
    fn url(&self) -> &str {
        &self.url
    }

    fn kept(&self) -> u64 {
        KEPT
    }

    fn head(&self) -> Reply<'_, Option<Head>> {
        self.work(Self::newest)
    }

    fn version(&self, number: u64) -> Reply<'_, Option<Version>> {
        self.work(move |own| own.read(number))
    }

    fn history(&self, most: usize) -> Reply<'_, Vec<Entry>> {
        self.work(move |own| {
            let numbers = own.numbers()?.into_iter().take(most);
            let entries = numbers.map(|number| Ok(own.entry(number)?.map(|(entry, _)| entry)));
            entries.filter_map(Result::transpose).collect()
        })
    }

    fn push<'a>(&'a self, from: Option<&'a Head>, draft: Draft<'a>) -> Reply<'a, PushOutcome> {
        let at = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let at_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        let number = Head::after(from, "").number();
        let (from, version) = (from.cloned(), Version::from_draft(number, at_ms, &draft));
        self.work(move |own| own.add_after(from.as_ref(), &version))
    }
}
