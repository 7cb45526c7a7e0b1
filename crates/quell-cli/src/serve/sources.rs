//! Sources: `--rules` as it is said, with commas between sources and inside the URLs of some.

use std::path::PathBuf;

/// The sources in `said`, which are cut at commas: but not between the hosts of one URL, which end
/// with the first `/` or `?` after `://`.
pub(super) fn split(said: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut sources = Vec::new();
    for said in said {
        match said.to_str() {
            Some(text) => sources.extend(split_text(text).into_iter().map(PathBuf::from)),
            None => sources.push(said),
        }
    }
    sources
}

fn split_text(text: &str) -> Vec<String> {
    let mut sources: Vec<String> = Vec::new();
    let mut are_hosts_open = false;
    for piece in text.split(',') {
        match sources.last_mut().filter(|_| are_hosts_open) {
            Some(url) => {
                url.push(',');
                url.push_str(piece);
                are_hosts_open = !piece.contains(['/', '?']);
            }
            None => {
                // redis+cluster:// and redis+sentinel:// have several hosts.
                let url = piece.split_once("://");
                let hosts = url.filter(|(scheme, _)| scheme.contains('+'));
                are_hosts_open = hosts.is_some_and(|(_, hosts)| !hosts.contains(['/', '?']));
                sources.push(piece.to_owned());
            }
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_part_sources_and_not_hosts() {
        for (text, sources) in [
            ("a.yaml,b/c.yaml", &["a.yaml", "b/c.yaml"][..]),
            ("redis://h:1/0,a.yaml", &["redis://h:1/0", "a.yaml"]),
            ("redis://h,a.yaml", &["redis://h", "a.yaml"]),
            (
                "redis+cluster://h:1,i:2/,a.yaml",
                &["redis+cluster://h:1,i:2/", "a.yaml"],
            ),
            (
                "a.yaml,redis+cluster://h,i",
                &["a.yaml", "redis+cluster://h,i"],
            ),
            (
                "redis+sentinel://:p@h,i,j/0?master=m,b.yaml",
                &["redis+sentinel://:p@h,i,j/0?master=m", "b.yaml"],
            ),
        ] {
            assert_eq!(split_text(text), sources, "{text}");
        }
    }
}
