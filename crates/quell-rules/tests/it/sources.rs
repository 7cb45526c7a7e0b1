//! Rules from files mixed with texts, and several files joined into one text.

use std::fs;

use quell_rules::{Source, TextFile, join_texts, load, load_from, parse_str, read_texts};

fn file(text: &str) -> TextFile {
    TextFile {
        name: "f".to_owned(),
        text: text.to_owned(),
    }
}

#[test]
fn texts_stand_among_files_in_the_order_given() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.yaml");
    fs::write(&path, "domain: a\nrules: [{ name: x, rate: 1/s }]\n").unwrap();
    let text = Source::Text {
        name: "redis://h/0 version 7",
        text: "domain: b\nrules: [{ name: y, rate: 1/s }]",
    };
    let again = Source::Path(directory.path());
    let loaded = load_from([text, Source::Path(&path), again]).unwrap();
    let domains: Vec<&str> = loaded
        .domains
        .iter()
        .map(|domain| &*domain.domain)
        .collect();
    assert_eq!(domains, ["b", "a"]);
    assert_eq!(
        loaded.files,
        std::slice::from_ref(&path),
        "a file counts once"
    );

    let wrong = Source::Text {
        name: "redis://h/0 version 8",
        text: "domain: a\nrules:\n  - { name: x, rate: 5 }",
    };
    let problems = load_from([Source::Path(&path), wrong]).unwrap_err();
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert!(
        texts[0].starts_with(
            "redis://h/0 version 8:3:13: rules[0].name: domain `a` has a rule `x` already"
        ),
        "{texts:?}"
    );
    assert!(texts[1].contains("write `5/s`"), "{texts:?}");
}

#[test]
fn files_become_one_text_that_says_the_same() {
    let parts = [
        "# first\ndomain: a\nrules: [{ name: x, rate: 1/s }] # end",
        "---\ndomain: b\r\nrules: [{ name: y, rate: 1/s }]\r\n...\n",
        "%YAML 1.2\n---\ndomain: c\nrules: []\n",
        "# head\n\n---\ndomain: d\nrules: []\n---\nrules: []\ndomain: e",
        "domain: f\nrules: []\n",
    ];
    let files: Vec<TextFile> = parts.iter().map(|text| file(text)).collect();
    let joined = join_texts(&files);
    for part in parts {
        assert!(joined.contains(part), "{joined}");
    }
    let together = load_from(files.iter().map(TextFile::source)).unwrap();
    assert_eq!(
        parse_str("joined", &joined).unwrap().domains,
        together.domains
    );
    assert_eq!(together.domains.len(), 6);
    assert_eq!(join_texts(&files[..1]), parts[0], "one file stays as it is");
}

#[test]
fn texts_are_those_that_would_be_loaded() {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("b.yaml", "\u{feff}domain: b\nrules: []"),
        ("a.yml", "rules: []\ndomain: a"),
        ("a.test.yaml", "tests: []"),
    ] {
        fs::write(directory.path().join(name), text).unwrap();
    }
    let texts = read_texts(&[directory.path()]).unwrap();
    let said: Vec<&str> = texts.files.iter().map(|file| &*file.text).collect();
    assert_eq!(said, ["rules: []\ndomain: a", "domain: b\nrules: []"]);
    let names: Vec<String> = texts.files.iter().map(|file| file.name.clone()).collect();
    let loaded = load(&[directory.path()]).unwrap();
    let files = loaded.files.iter().map(|file| file.display().to_string());
    assert_eq!(names, files.collect::<Vec<_>>());

    fs::write(directory.path().join("c.yaml"), b"domain: \xff").unwrap();
    let problems = read_texts(&[directory.path()]).unwrap_err();
    assert!(
        problems[0]
            .to_string()
            .contains("c.yaml:1:9: this byte is not UTF-8")
    );
    let problems = read_texts(&[directory.path().join("none.yaml")]).unwrap_err();
    assert!(problems[0].to_string().contains("cannot be read"));
}
