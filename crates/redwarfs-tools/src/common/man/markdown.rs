//! Manuals as pages of a book: Markdown for headings and paragraphs, HTML for lists of definitions, which
//! Markdown does not have.

use super::document::{Block, Manual, Span, Style};

pub(super) fn render(manual: &Manual) -> String {
    let mut out = format!("# {}\n\n{}.\n", manual.name, html(&manual.summary));
    for section in &manual.sections {
        out.push_str(&format!("\n## {}\n", html(&heading(&section.title))));
        let mut list = None;
        for block in &section.blocks {
            change_list(&mut out, &mut list, list_of(block), "\n");
            match block {
                Block::Definition { .. } | Block::Item { .. } => element(&mut out, block),
                Block::Literal(lines) => {
                    out.push_str(&format!("\n```text\n{}\n```\n", lines.join("\n")));
                }
                Block::Paragraph(spans) => out.push_str(&format!("\n{}\n", text(spans))),
            }
        }
        change_list(&mut out, &mut list, None, "\n");
    }
    out
}

/// The element of the list that a block belongs to.
fn list_of(block: &Block) -> Option<&'static str> {
    match block {
        Block::Definition { .. } => Some("dl"),
        Block::Item { number: None, .. } => Some("ul"),
        Block::Item { .. } => Some("ol"),
        Block::Paragraph(_) | Block::Literal(_) => None,
    }
}

/// Ends a list, and begins the next one with `before`.
fn change_list(
    out: &mut String,
    list: &mut Option<&'static str>,
    next: Option<&'static str>,
    before: &str,
) {
    if *list == next {
        return;
    }
    if let Some(last) = list {
        out.push_str(&format!("</{last}>\n"));
    }
    if let Some(next) = next {
        out.push_str(&format!("{before}<{next}>\n"));
    }
    *list = next;
}

/// The blocks of an element.
fn elements(out: &mut String, blocks: &[Block]) {
    let mut list = None;
    for block in blocks {
        change_list(out, &mut list, list_of(block), "");
        element(out, block);
    }
    change_list(out, &mut list, None, "");
}

/// `EXIT STATUS` as "Exit status".
fn heading(title: &str) -> String {
    if title.chars().any(char::is_lowercase) {
        return title.to_owned();
    }
    let mut chars = title.chars();
    let first = chars.next().into_iter();
    first.chain(chars.flat_map(char::to_lowercase)).collect()
}

/// A block as HTML. After an empty line, Markdown would continue, so there is none.
fn element(out: &mut String, block: &Block) {
    match block {
        Block::Paragraph(spans) => out.push_str(&format!("<p>{}</p>\n", text(spans))),
        Block::Literal(lines) => {
            let lines: Vec<String> = lines
                .iter()
                .map(|line| match line.as_str() {
                    "" => String::from("&nbsp;"),
                    line => html(line),
                })
                .collect();
            out.push_str(&format!("<pre><code>{}</code></pre>\n", lines.join("\n")));
        }
        Block::Definition { term, body } => {
            out.push_str(&format!("<dt>{}</dt>\n<dd>\n", text(term)));
            elements(out, body);
            out.push_str("</dd>\n");
        }
        Block::Item { number, body } => {
            let value = number.map(|number| format!(" value=\"{number}\""));
            out.push_str(&format!("<li{}>\n", value.unwrap_or_default()));
            elements(out, body);
            out.push_str("</li>\n");
        }
    }
}

fn text(spans: &[Span]) -> String {
    let piece = |span: &Span| {
        let text = html(&span.text);
        match span.style {
            Style::Plain => text,
            Style::Bold => format!("<code>{text}</code>"),
            Style::Italic => format!("<em>{text}</em>"),
        }
    };
    spans.iter().map(piece).collect()
}

/// Characters that mean something in HTML or Markdown become entities.
fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii_punctuation() && !matches!(c, ',' | '.' | ';' | '-' | '/' | '\'' | '(' | ')')
        {
            out.push_str(&format!("&#{};", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    #[test]
    fn lists() {
        let manual = Manual {
            name: "x".into(),
            section: 1,
            summary: "y".into(),
            sections: parse(
                "# A\nThese:\n- `one`\n- two\n\n  more\n\n2. second\n\nend\n\n**t**\n: has\n\n  - inner\n",
            ),
        };
        assert_eq!(
            manual.to_markdown(),
            "# x\n\ny.\n\n## A\n\nThese&#58;\n\n<ul>\n<li>\n<p><code>one</code></p>\n</li>\n<li>\n<p>two</p>\n<p>more</p>\n</li>\n</ul>\n\n\
             <ol>\n<li value=\"2\">\n<p>second</p>\n</li>\n</ol>\n\nend\n\n\
             <dl>\n<dt><code>t</code></dt>\n<dd>\n<p>has</p>\n<ul>\n<li>\n<p>inner</p>\n</li>\n</ul>\n</dd>\n</dl>\n"
        );
    }

    #[test]
    fn all_forms() {
        let manual = Manual {
            name: "x-y".into(),
            section: 1,
            summary: "does <it>".into(),
            sections: parse(
                "# EXIT STATUS\nSome `-a`*N* a_b.\n\n    <lit>\n\n**t**\n: one\n\n  two\n\n      code\n\n      more\n\nend\n",
            ),
        };
        assert_eq!(
            manual.to_markdown(),
            "# x-y\n\ndoes &#60;it&#62;.\n\n## Exit status\n\n\
             Some <code>-a</code><em>N</em> a&#95;b.\n\n```text\n<lit>\n```\n\n\
             <dl>\n<dt><code>t</code></dt>\n<dd>\n<p>one</p>\n<p>two</p>\n\
             <pre><code>code\n&nbsp;\nmore</code></pre>\n</dd>\n</dl>\n\nend\n"
        );
    }
}
