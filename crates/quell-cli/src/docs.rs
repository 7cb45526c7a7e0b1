//! `quell docs`: the pages that messages name by their path, of this very version.

use anyhow::Result;
use clap::Args;

use crate::exit::{Exit, Usage};
use crate::output;

/// The pages, each with its name and its text. `docs` and `SECURITY.md` beside `src` are links, so that the packed
/// crate has the pages too.
macro_rules! pages {
    ($($name:literal)*) => {
        pub(crate) const PAGES: &[Page] = &[
            Page { name: "security-policy", text: include_str!("../SECURITY.md") },
            $(Page { name: $name, text: include_str!(concat!("../docs/", $name, ".md")) }),*
        ];
    };
}

pages! {
    "benchmarks" "chaos" "cli" "coming-from" "concepts" "console" "envoy-token-budgets" "fields" "fleet"
    "for-your-users" "gateways" "http" "limits" "observability" "operate" "overrides" "plans-and-tenants" "production" "recipes" "redis" "resp"
    "rules" "security" "token-budgets" "tower" "troubleshooting"
}

/// One page of the manual.
#[derive(Debug)]
pub(crate) struct Page {
    /// Its file's name, without the ending.
    pub(crate) name: &'static str,
    /// Markdown.
    pub(crate) text: &'static str,
}

impl Page {
    /// The words of its first heading.
    pub(crate) fn title(&self) -> &'static str {
        let first = self.text.lines().next().unwrap_or_default();
        first.trim_start_matches("# ")
    }

    /// The section under the heading with this anchor, up to the next heading of its level.
    fn section(&self, wanted: &str) -> Option<&'static str> {
        let (mut start, mut end) = (None, self.text.len());
        let mut offset = 0;
        let mut in_fence = false;
        for line in self.text.split_inclusive('\n') {
            in_fence ^= line.starts_with("```");
            let level = line.len() - line.trim_start_matches('#').len();
            if level > 0 && !in_fence {
                match start {
                    None if anchor(line) == wanted => start = Some((offset, level)),
                    Some((_, of)) if level <= of => {
                        end = offset;
                        break;
                    }
                    _ => {}
                }
            }
            offset += line.len();
        }
        start.map(|(start, _)| self.text[start..end].trim_end())
    }

    /// The anchors of its headings.
    fn anchors(&self) -> Vec<String> {
        let mut in_fence = false;
        let headings = self.text.lines().filter(|line| {
            in_fence ^= line.starts_with("```");
            !in_fence && line.starts_with("##")
        });
        headings.map(anchor).collect()
    }
}

/// The anchor of a heading, as links to it have it.
fn anchor(heading: &str) -> String {
    let letters = heading.trim_start_matches('#').trim().chars();
    let letters = letters.filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || "-_".contains(c) => Some(c),
        _ => None,
    });
    letters.flat_map(char::to_lowercase).collect()
}

/// Print a page of the documentation
///
/// The pages are those of this version, and need no network. Without a page, all are listed. Messages name pages by
/// their path, such as docs/redis.md#lost-memory: that works here too. `quell man` writes them as manual pages.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell docs
  quell docs rules | less
  quell docs docs/rules.md#one-knob-max_over_admission")]
pub(crate) struct Docs {
    /// The page: a name of the list, or a path such as docs/redis.md; with #SECTION only that section
    #[arg(value_name = "PAGE[#SECTION]")]
    page: Option<String>,
}

impl Docs {
    /// Prints the page, or the list of pages.
    pub(crate) fn run(&self) -> Result<Exit> {
        let Some(wanted) = &self.page else {
            let width = PAGES.iter().map(|page| page.name.len()).max().unwrap_or(0);
            for Page { name, .. } in PAGES {
                let title = find(name)?.0.title();
                output::line(format_args!("{name:width$}  {title}"))?;
            }
            return Ok(Exit::Fine);
        };
        let (page, section) = find(wanted)?;
        let text = match section {
            None => page.text.trim_end(),
            Some(section) => page.section(section).ok_or_else(|| {
                let there = page.anchors().join(", ");
                Usage(format!(
                    "{} has no section #{section}; it has: {there}",
                    page.name
                ))
            })?,
        };
        output::line(text)?;
        Ok(Exit::Fine)
    }
}

/// The page that is meant by a name or a path, and the section after `#`.
fn find(wanted: &str) -> Result<(&'static Page, Option<&str>)> {
    let (path, section) = match wanted.split_once('#') {
        Some((path, section)) => (path, Some(section)),
        None => (wanted, None),
    };
    let file = path.rsplit('/').next().unwrap_or(path);
    let name = match file {
        // Not the page docs/security.md.
        "SECURITY.md" => "security-policy",
        file => file.strip_suffix(".md").unwrap_or(file),
    };
    let found = PAGES
        .iter()
        .find(|page| page.name.eq_ignore_ascii_case(name));
    let page = found.ok_or_else(|| {
        Usage(format!(
            "there is no page {wanted:?}: `quell docs` lists the pages"
        ))
    })?;
    Ok((page, section))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_page_of_the_repository_is_shipped() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let names = fs::read_dir(folder).unwrap().filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".md").map(str::to_owned)
        });
        let mut there: Vec<String> = names.filter(|name| name != "README").collect();
        there.push("security-policy".to_owned());
        there.sort_unstable();
        let mut shipped: Vec<&str> = PAGES.iter().map(|page| page.name).collect();
        shipped.sort_unstable();
        assert_eq!(shipped, there);
        assert!(PAGES.iter().all(|page| page.text.starts_with("# ")));
    }

    #[test]
    fn a_page_is_found_by_its_name_its_path_and_a_link() {
        for wanted in [
            "redis",
            "redis.md",
            "docs/redis.md",
            "docs/redis.md#lost-memory",
            "Redis",
        ] {
            assert_eq!(find(wanted).unwrap().0.name, "redis", "{wanted}");
        }
        assert_eq!(find("SECURITY.md").unwrap().0.name, "security-policy");
        assert_eq!(find("docs/security.md#roles").unwrap().0.name, "security");
        let error = find("rediss").unwrap_err().to_string();
        assert!(error.contains("`quell docs` lists the pages"), "{error}");
    }

    #[test]
    fn a_section_ends_at_the_next_heading_of_its_level() {
        let text = "# T\n## A b\none\n```sh\n# no heading\n```\n### C\ntwo\n## D\nthree\n";
        let page = Page { name: "t", text };
        let section = "## A b\none\n```sh\n# no heading\n```\n### C\ntwo";
        assert_eq!(page.section("a-b"), Some(section));
        assert_eq!(page.section("d"), Some("## D\nthree"));
        assert_eq!(page.section("no-heading"), None);
        assert_eq!(page.anchors(), ["a-b", "c", "d"]);
    }
}
