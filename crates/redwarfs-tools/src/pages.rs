//! Pages of the manual that are not about one program.

use crate::common::man::{Block, Manual, Section, Span, Style};
use crate::common::tool::Tool;

/// The page about the image format, and the page about settings and speed.
#[must_use]
pub fn pages() -> [Manual; 2] {
    let format = Manual::page(
        "dwarfs-format",
        5,
        "the DwarFS image format",
        include_str!("../manual/dwarfs-format.md"),
    );
    let mut overview = Manual::page(
        "redwarfs",
        7,
        "DwarFS images: first steps, settings, speed and memory",
        include_str!("../manual/overview.md"),
    );
    let at = overview
        .sections
        .iter()
        .position(|section| section.title == "SEE ALSO")
        .unwrap_or(overview.sections.len());
    overview.sections.insert(at, environment());
    [format, overview]
}

/// The variables of all programs, from their manuals. A variable that only some programs use has a
/// remark that names them.
fn environment() -> Section {
    let manuals = crate::tools();
    let manuals: Vec<_> = manuals.iter().map(Tool::manual).collect();
    let mut variables: Vec<(&Block, Vec<&str>)> = Vec::new();
    for manual in &manuals {
        for block in manual.chapter("ENVIRONMENT") {
            match variables.iter_mut().find(|(known, _)| *known == block) {
                Some((_, users)) => users.push(&manual.name),
                None => variables.push((block, vec![&manual.name])),
            }
        }
    }
    let mut blocks: Vec<Block> = variables
        .into_iter()
        .map(|(block, users)| match block.clone() {
            Block::Definition { term, mut body } if users.len() < manuals.len() => {
                body.push(used_by(&users));
                Block::Definition { term, body }
            }
            common => common,
        })
        .collect();
    blocks.sort_by_cached_key(|block| match block {
        Block::Definition { term, .. } => term.iter().map(|span| span.text.clone()).collect(),
        Block::Paragraph(_) | Block::Literal(_) | Block::Item { .. } => String::new(),
    });
    Section {
        title: String::from("ENVIRONMENT"),
        blocks,
    }
}

fn used_by(programs: &[&str]) -> Block {
    let mut spans = vec![Span::new(Style::Plain, "Used by ")];
    for (at, program) in programs.iter().enumerate() {
        if at > 0 {
            spans.push(Span::new(Style::Plain, ", "));
        }
        spans.push(Span::new(Style::Bold, *program));
        spans.push(Span::new(Style::Plain, "(1)"));
    }
    spans.push(Span::new(Style::Plain, "."));
    Block::Paragraph(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each variable that the programs document is in the overview once.
    #[test]
    fn the_overview_has_every_variable_once() {
        let overview = pages()[1].to_text(100, false);
        let (_, chapter) = overview.split_once("\nENVIRONMENT\n").expect("a chapter");
        let (chapter, _) = chapter
            .split_once("\nSEE ALSO\n")
            .expect("a chapter behind it");
        for tool in crate::tools() {
            for block in tool.manual().chapter("ENVIRONMENT") {
                let Block::Definition { term, .. } = block else {
                    panic!("{}: {block:?}", tool.name());
                };
                let name: String = term.iter().map(|span| span.text.as_str()).collect();
                let count = chapter.lines().filter(|line| line.trim() == name).count();
                assert_eq!(count, 1, "{name} in {chapter}");
            }
        }
        assert!(
            chapter.contains("Used by dwarfsextract(1)."),
            "variables of one program are marked: {chapter}"
        );
        assert!(
            !chapter.contains("Used by mkdwarfs(1), dwarfs(1), dwarfsck(1)"),
            "variables of all programs are not marked: {chapter}"
        );
    }
}
