//! Row: the pages one after the other, as `docs/README.md` orders them, in one folder, in one shell and on
//! one set of ports. Between two pages there is what that page tells a reader to type.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::fixtures::Fixture;
use super::{Part, Place, compare, pages, parts, read, require_all};

/// The page that has the order.
const CONTENTS: &str = "docs/README.md";

/// The pages in the order of the contents, then those that these do not name.
fn in_order(contents: &str) -> Vec<String> {
    let mut all = pages();
    let links = contents.split("](").skip(1);
    let linked = links.filter_map(|link| {
        let (page, _) = link.split_once(['#', ')'])?;
        let page = match page.strip_prefix("../") {
            Some(page) => page.to_owned(),
            None => format!("docs/{page}"),
        };
        let at = all.iter().position(|known| *known == page)?;
        Some(all.remove(at))
    });
    let mut order: Vec<String> = linked.collect();
    order.extend(all);
    order
}

/// What a reader types between two pages.
pub(super) fn between(contents: &str) -> Vec<&str> {
    let (before, _) = contents.split_once("\n## ").unwrap();
    let commands: Vec<&str> = before.split('`').skip(1).step_by(2).collect();
    assert!(commands.len() > 1, "{before}");
    commands
}

#[test]
fn pages_work_one_after_the_other() {
    require_all();
    let contents = read(CONTENTS);
    let mut place = Place::new(CONTENTS);
    let mut fixtures = Vec::new();
    let (mut all, mut script, mut count) = (Vec::new(), String::new(), 0);
    for page in in_order(&contents) {
        let parts = parts(&page, &read(&page), &mut BTreeSet::new());
        if parts.iter().all(|part| matches!(part, Part::File(..))) {
            continue;
        }
        count += 1;
        place.fixture = Fixture::of(&page, &place.folder);
        write!(script, "page={page}\n{}\n", place.script(&parts, all.len())).unwrap();
        fixtures.push(std::mem::take(&mut place.fixture));
        for command in between(&contents) {
            writeln!(script, "{{ {}; }} || true", place.adapt(command)).unwrap();
        }
        script.push_str("nothing_is_left\n");
        all.extend(parts);
    }
    assert!(count > 15, "{count}");
    let ran = place.run_script(&script, "400");
    let compared = ran.and_then(|printed| compare(&all, &printed));
    compared.unwrap_or_else(|error| panic!("{error}"));
}
