//! Manual pages, as `man` formats them.

use std::collections::BTreeSet;
use std::fs;

use crate::clients::man;
use crate::files::Folder;
use crate::process::{quell, run};

/// The names of a command's subcommands, as its help lists them.
fn subcommands(words: &[&str]) -> Vec<String> {
    let help = run(quell(words).arg("--help")).expect_success();
    let Some((_, rest)) = help.split_once("Commands:\n") else {
        return Vec::new();
    };
    let lines = rest.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names
        .filter(|name| !name.is_empty() && *name != "help")
        .map(str::to_owned)
        .collect()
}

/// The words of a command and of all below it.
pub(crate) fn commands(words: &[&str]) -> BTreeSet<Vec<String>> {
    let mut all = BTreeSet::from([words.iter().map(ToString::to_string).collect()]);
    for name in subcommands(words) {
        all.extend(commands(&[words, &[&name]].concat()));
    }
    all
}

#[test]
fn each_command_has_a_page_in_which_man_finds_no_mistake() {
    let folder = Folder::new();
    let directory = folder.path("man");
    let secret = "redis://user:only-in-this-test@localhost";
    let written = run(quell(&["man", &directory]).env("QUELL_STORE", secret));
    assert!(written.status.success(), "{written:?}");
    let mut found = BTreeSet::new();
    let folders = ["man1", "man7"].map(|section| fs::read_dir(format!("{directory}/{section}")));
    let entries = folders.into_iter().flat_map(Result::unwrap);
    for path in entries.map(|entry| entry.unwrap().path()) {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let told = run(man().args(["-E", "UTF-8", "-l", "--warnings"]).arg(&path));
        assert!(
            told.status.success() && told.stderr.is_empty(),
            "{name}: {told:?}"
        );
        assert!(told.stdout.contains(&name.replace('-', " ")) || told.stdout.contains(&name));
        assert!(
            !told.stdout.contains("only-in-this-test"),
            "{}",
            told.stdout
        );
        found.insert(path.file_name().unwrap().to_str().unwrap().to_owned());
    }
    let page = |words: Vec<String>| [vec!["quell".to_owned()], words].concat().join("-") + ".1";
    let mut expected: BTreeSet<String> = commands(&[]).into_iter().map(page).collect();
    assert!(expected.len() > 15, "{expected:?}");
    let listed = run(&mut quell(&["docs"])).expect_success();
    let names = listed.lines().filter_map(|line| line.split(' ').next());
    expected.extend(names.map(|name| format!("quell-{name}.7")));
    assert_eq!(found, expected);
    assert!(
        written
            .stderr
            .contains(&format!("{} manual pages", found.len())),
        "{written:?}"
    );
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let told = run(&mut quell(&["man", "/dev/null/man"]));
    assert_eq!(told.code(), Some(1));
    assert!(told.stderr.contains("/dev/null/man"), "{told:?}");
}
