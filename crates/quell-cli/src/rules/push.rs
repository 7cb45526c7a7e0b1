//! `quell rules push`: rules files become the newest version in a store.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use quell_host::pulled_rules::{Origin, take_line};
use quell_host::rule_push::ProposedText;
use quell_rules::{
    LoadedRules, MAX_FILE_BYTES, Problem, TextFile, join_texts, load_from, parse_str, read_texts,
};

use super::publish::PublishArgs;
use crate::exit::Exit;

/// Push rules files to a store, in place of the rules that are there
///
/// The rules are checked as a server would check them. Nothing is pushed if they have a mistake, or if
/// the newest version in the store is not the one that the files were made from. The first line of a
/// pulled file names that version, or --expect does. Exit code 0 if the rules are in the store, 1 if
/// not.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell rules push --store redis://localhost:6379/0 shop.yaml
  quell rules push --store redis://localhost:6379/0 rules.d/ --note 'before the sale' --dry-run
  quell rules pull --store redis://localhost:6379/0 | sed s/100/200/ | quell rules push --store redis://localhost:6379/0 -")]
pub(super) struct Push {
    /// Rules files and directories, loaded together as by a server; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    publish: PublishArgs,
}

/// Files that are sound together.
struct Sound {
    text: String,
    loaded: LoadedRules,
    /// The versions that pulled files say they were made from.
    origins: Vec<Origin>,
}

impl Push {
    /// Checks, compares and pushes.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub(super) fn run(&self) -> Result<Exit> {
        let sound = match read(&self.files)? {
            Ok(sound) => sound,
            Err(problems) => return self.publish.print_mistakes(problems),
        };
        let change = self.publish.begin()?;
        let mut origins = sound.origins.into_iter();
        let in_file = origins.next();
        let differing = origins.find(|other| Some(other) != in_file.as_ref());
        if let (Some(a), Some(b), None) = (&in_file, differing, self.publish.expected()) {
            let reason = format!(
                "these files were pulled from versions {} and {}: pass --expect with the one that must be \
                the newest",
                a.number, b.number
            );
            return change.refuse(reason);
        }
        if let Some(reason) = change.push.unmet(in_file) {
            return change.refuse(reason);
        }
        change.publish(ProposedText {
            text: &sound.text,
            loaded: sound.loaded,
            remark: String::new(),
        })
    }
}

/// The files as one text, and what they say; mistakes are told where they stand in the files.
fn read(files: &[PathBuf]) -> Result<Result<Sound, Vec<Problem>>> {
    let mut texts = Vec::new();
    let mut warnings = Vec::new();
    let mut problems = Vec::new();
    // Files beside each other together, so that one that is named twice counts once.
    for paths in files.chunk_by(|a, b| !is_stdin(a) && !is_stdin(b)) {
        if paths.iter().any(|path| is_stdin(path)) {
            texts.push(stdin()?);
            continue;
        }
        match read_texts(paths) {
            Ok(read) => {
                texts.extend(read.files);
                warnings.extend(read.warnings);
            }
            Err(found) => problems.extend(found),
        }
    }
    if !problems.is_empty() {
        return Ok(Err(problems));
    }
    let mut loaded = match load_from(texts.iter().map(TextFile::source)) {
        Ok(loaded) => loaded,
        Err(problems) => return Ok(Err(problems)),
    };
    warnings.append(&mut loaded.warnings);
    loaded.warnings = warnings;
    let mut origins = Vec::new();
    for file in &mut texts {
        let (origin, rest) = take_line(&file.text);
        if let Some(origin) = origin {
            origins.push(origin);
            file.text = rest.to_owned();
        }
    }
    let text = join_texts(&texts);
    // One text of many files must say what they say.
    let joined = parse_str("the files together", &text);
    Ok(match joined {
        Ok(joined) if joined.domains == loaded.domains => Ok(Sound {
            text,
            loaded,
            origins,
        }),
        Ok(_) => {
            let reason = "these files differ in meaning when they are joined into one: write the rules in one file";
            anyhow::bail!(reason)
        }
        Err(problems) => Err(problems),
    })
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn stdin() -> Result<TextFile> {
    let mut bytes = Vec::new();
    // A byte more than allowed, so that the loader says so.
    let most = MAX_FILE_BYTES as u64 + 1;
    let read = std::io::stdin().lock().take(most).read_to_end(&mut bytes);
    read.context("cannot read standard input")?;
    let text = String::from_utf8(bytes).context("standard input is not UTF-8")?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned();
    let name = "standard input".to_owned();
    Ok(TextFile { name, text })
}
