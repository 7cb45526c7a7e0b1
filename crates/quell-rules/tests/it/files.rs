//! Files and directories: which are read, in which order, and the messages for those that cannot
//! be.

use std::fs;
use std::path::{Path, PathBuf};

use quell_rules::{load, parse_str, scenario};

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

fn domain(name: &str) -> String {
    format!("domain: {name}\nrules: [{{ name: r, rate: 1/s }}]\n")
}

#[test]
fn directories_are_read_in_the_order_of_names() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    for (name, said) in [
        ("b.yaml", "b"),
        ("a.yml", "a"),
        ("c/z.yaml", "cz"),
        ("c/d/e.yaml", "cde"),
        (".hidden.yaml", "hidden"),
        (".git/x.yaml", "git"),
        ("x.test.yaml", "scenario"),
        ("notes.txt", "notes"),
    ] {
        write(root, name, &domain(said));
    }
    let first = write(root, "other/first.conf", &domain("first"));
    let loaded = load(&[&first, &root.to_owned()]).unwrap();
    let domains: Vec<&str> = loaded
        .domains
        .iter()
        .map(|domain| &*domain.domain)
        .collect();
    assert_eq!(domains, ["first", "a", "b", "cde", "cz"]);
    let files = [
        "other/first.conf",
        "a.yml",
        "b.yaml",
        "c/d/e.yaml",
        "c/z.yaml",
    ];
    assert_eq!(loaded.files, files.map(|file| root.join(file)));
}

#[test]
fn one_domain_may_stand_in_several_files() {
    let directory = tempfile::tempdir().unwrap();
    let a = write(
        directory.path(),
        "a.yaml",
        "domain: d\nrules: [{ name: one, rate: 1/s }]\n",
    );
    let b = write(
        directory.path(),
        "b.yaml",
        "domain: d\nrules:\n  - { name: two, rate: 1/s }\n  - { name: one, rate: 1/s }\n",
    );
    let told = load(&[&a, &b]).unwrap_err();
    let expected = format!(
        "{}:4:13: rules[1].name: domain `d` has a rule `one` already, at {}:2:17: write another name",
        b.display(),
        a.display()
    );
    assert_eq!(
        told.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [expected]
    );
    fs::write(&b, "domain: d\nrules:\n  - { name: two, rate: 1/s }\n").unwrap();
    let rules = load(&[&a, &b]).unwrap().domains.remove(0).rules;
    assert_eq!(
        rules.iter().map(|rule| &*rule.name).collect::<Vec<_>>(),
        ["one", "two"]
    );
}

#[test]
fn all_files_are_told_of_in_one_run() {
    let directory = tempfile::tempdir().unwrap();
    let a = write(
        directory.path(),
        "a.yaml",
        "domain: a\nrules: [{ name: r, rate: 1 }]\n",
    );
    let b = directory.path().join("missing.yaml");
    let c = write(
        directory.path(),
        "c.yaml",
        "domain: c\nrules: [{ name: r, rate: 2 }]\n",
    );
    let told = load(&[&a, &b, &c]).unwrap_err();
    let told: Vec<String> = told.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            format!(
                "{}:2:26: rules[0].rate: `1` has no period: write `1/s`, `1/min` or the like",
                a.display()
            ),
            format!(
                "{}: cannot be read (No such file or directory (os error 2)): write the path of a file that can",
                b.display()
            ),
            format!(
                "{}:2:26: rules[0].rate: `2` has no period: write `2/s`, `2/min` or the like",
                c.display()
            ),
        ]
    );
}

/// An unmounted volume, or a file that is being written, removes no rules.
#[test]
fn what_says_nothing_is_a_mistake() {
    let directory = tempfile::tempdir().unwrap();
    let told = |path: &Path| load(&[path]).unwrap_err()[0].to_string();
    assert_eq!(
        told(directory.path()),
        format!(
            "{}: no rules in this directory: write files named *.yaml or *.yml, one with \
             `rules: []` if there are to be none",
            directory.path().display()
        )
    );
    let empty = write(directory.path(), "a.yaml", "");
    let expected = format!(
        "{}: the file has no content: write a document with `domain:` and `rules:`, with `rules: []` if it is to \
        have none",
        empty.display()
    );
    assert_eq!(told(&empty), expected);
    write(directory.path(), "b.yaml", &domain("b"));
    assert_eq!(told(directory.path()), expected, "beside others, too");
}

#[test]
fn directories_that_lead_into_themselves_end() {
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(directory.path(), directory.path().join("again")).unwrap();
    write(directory.path(), "a.yaml", &domain("a"));
    assert_eq!(
        load(&[directory.path()]).unwrap().files,
        [directory.path().join("a.yaml")]
    );
}

#[test]
fn a_file_counts_once() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let a = write(root, "d/a.yaml", &domain("a"));
    let roundabout = root.join("d/../d/./a.yaml");
    let link = root.join("link.yaml");
    std::os::unix::fs::symlink(&a, &link).unwrap();
    let d = root.join("d");
    let whole = root.to_owned();
    for paths in [
        vec![&a, &a],
        vec![&a, &roundabout],
        vec![&a, &link],
        vec![&a, &d],
        vec![&d, &d],
        vec![&d, &a],
        vec![&d, &whole],
        vec![&whole, &d],
    ] {
        let loaded = load(&paths).unwrap_or_else(|told| panic!("{paths:?}: {told:#?}"));
        assert_eq!(loaded.files, std::slice::from_ref(&a), "{paths:?}");
        assert_eq!(loaded.warnings, [], "{paths:?}");
    }
    // Two files with the same content are two files.
    let copy = write(root, "copy.yaml", &domain("a"));
    assert!(load(&[&a, &copy]).is_err());
    let missing = root.join("missing.yaml");
    assert_eq!(load(&[&missing, &missing]).unwrap_err().len(), 1);
}

#[test]
fn a_walk_has_an_end() {
    let directory = tempfile::tempdir().unwrap();
    for name in 0..100_001 {
        fs::File::create(directory.path().join(format!("{name}.txt"))).unwrap();
    }
    let told = load(&[directory.path()]).unwrap_err();
    let expected = format!(
        "{}: more than 100000 entries: write the path of a directory that holds rules only",
        directory.path().display()
    );
    assert_eq!(told[0].to_string(), expected);
}

#[test]
fn a_scenario_file_is_no_rules_file_nor_the_other_way_round() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let tests = write(root, "x.test.yaml", "rules: a.yaml\ntests: []\n");
    let told = load(&[&tests]).unwrap_err();
    let expected = format!(
        "{}:2:1: tests: this is a file of tests: run it with `quell rules test`",
        tests.display()
    );
    assert_eq!(told[0].to_string(), expected);
    assert_eq!(told.len(), 1);
    let rules = write(root, "a.yaml", &domain("a"));
    let told = scenario::load(&rules).unwrap_err();
    let expected = format!(
        "{}:1:1: domain: this is a file of rules: check it with `quell rules check`, or write `tests:` below a \
         line `---` at its end, or into another file that says `rules: PATH`",
        rules.display()
    );
    assert_eq!(told[0].to_string(), expected);
    assert_eq!(told.len(), 1);
}

/// Tests may be kept in the file of the rules that they test: whoever loads the rules passes over them.
#[test]
fn rules_and_their_tests_may_be_one_file() {
    let directory = tempfile::tempdir().unwrap();
    let steps = "[{ at: 0s, entries: {}, repeat: 2, expect: { allowed: 1 } }]";
    let tests = format!("---\ntests: [{{ name: one, steps: {steps} }}]\n");
    let text = format!("domain: a\nrules: [{{ name: r, rate: 1/min }}]\n{tests}");
    let file = write(directory.path(), "a.yaml", &text);
    let alone = parse_str("a", &text.replace(&tests, "")).unwrap();
    assert_eq!(load(&[&file]).unwrap().domains, alone.domains);
    assert_eq!(parse_str("a", &text).unwrap().domains, alone.domains);
    let scenarios = scenario::load(&file).unwrap();
    assert_eq!(scenarios.tests().collect::<Vec<_>>(), ["one"]);

    // Mistakes are told by whoever has to do with them.
    let wrong = text.replace("steps", "step");
    assert!(parse_str("a", &wrong).is_ok());
    let told = scenario::parse_own("a", &wrong).unwrap().unwrap_err();
    assert!(
        told[0].to_string().contains("did you mean `steps`"),
        "{told:?}"
    );
    let wrong = text.replace("1/min", "1/moment");
    assert!(parse_str("a", &wrong).is_err());
    let told = scenario::parse_own("a", &wrong).unwrap().unwrap_err();
    assert!(told[0].to_string().contains("moment"), "{told:?}");
    // Tests alone are no rules, and tests of other rules are a file of their own.
    assert!(parse_str("a", &tests).is_err());
    assert!(scenario::parse_own("a", &tests).is_none());
    let of_others = text.replace("tests:", "rules: b.yaml\ntests:");
    let told = parse_str("a", &of_others).unwrap_err();
    assert!(
        told[0].to_string().contains("this is a file of tests"),
        "{told:?}"
    );
}

#[test]
fn a_directory_stands_for_the_scenarios_in_it() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let b = write(root, "t/b.test.yaml", "");
    let c = write(root, "t/c/c.test.yml", "");
    write(root, "t/a.yaml", "");
    write(root, "t/.d.test.yaml", "");
    let odd = write(root, "odd.yaml", "");
    let t = root.join("t");
    let found = scenario::find(&[&odd, &t, &b]);
    assert_eq!(found.files, [odd, b, c]);
    assert_eq!(found.problems, []);
    let none = root.join("none");
    fs::create_dir(&none).unwrap();
    let found = scenario::find(&[&none, &t]);
    assert_eq!(found.files.len(), 2);
    let expected = format!(
        "{}: no tests in this directory: write files named *.test.yaml",
        none.display()
    );
    assert_eq!(found.problems[0].to_string(), expected);
}
