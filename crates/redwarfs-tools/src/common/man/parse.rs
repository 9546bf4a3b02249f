//! Reads the texts of the manuals.

use super::document::{Block, Section, Span, Style};

/// Reads a text in a small part of Markdown:
///
/// - `# TITLE` begins a chapter;
/// - paragraphs are separated by empty lines;
/// - lines that begin with four spaces are literal;
/// - `: meaning` below a line defines the term in that line; further paragraphs of the meaning begin
///   with two spaces, and literal lines in it with six;
/// - `- ` or `1. ` begins an item of a list, and further lines and paragraphs of it begin with as many spaces;
/// - `**bold**`, `` `bold` `` and `*italic*`; a backslash takes away a character's meaning.
///
/// Text before the first chapter is ignored.
#[must_use]
pub fn parse(text: &str) -> Vec<Section> {
    let mut sections = Vec::new();
    let mut lines = text.lines().peekable();
    let mut body: Vec<&str> = Vec::new();
    let mut title = None;
    loop {
        let line = lines.next();
        match line.map(|line| (line, line.strip_prefix("# "))) {
            Some((line, None)) => body.push(line),
            other => {
                if let Some(title) = title.take() {
                    sections.push(Section {
                        title,
                        blocks: blocks(&body),
                    });
                }
                body.clear();
                match other {
                    Some((_, Some(next))) => title = Some(next.trim().to_owned()),
                    _ => return sections,
                }
            }
        }
    }
}

fn blocks(lines: &[&str]) -> Vec<Block> {
    let mut out = Vec::new();
    let mut rest = lines;
    while let Some((&line, tail)) = rest.split_first() {
        if line.trim().is_empty() {
            rest = tail;
        } else if line.starts_with("    ") {
            let end = length(rest, |line| line.starts_with("    "));
            let (literal, after) = rest.split_at(end);
            let cut = |line: &&str| line.get(4..).unwrap_or_default().to_owned();
            out.push(Block::Literal(literal.iter().map(cut).collect()));
            rest = after;
        } else if let Some((number, mark)) = item(line) {
            let belongs = |line: &str| {
                line.get(..mark)
                    .is_some_and(|start| start.trim().is_empty())
            };
            let (body, after) = rest.split_at(length(tail, belongs) + 1);
            let inner: Vec<&str> = body
                .iter()
                .map(|line| line.get(mark..).unwrap_or_default())
                .collect();
            out.push(Block::Item {
                number,
                body: blocks(&inner),
            });
            rest = after;
        } else if tail.first().is_some_and(|next| next.starts_with(": ")) {
            let end = length(tail.get(1..).unwrap_or_default(), |line| {
                line.starts_with("  ")
            });
            let (meaning, after) = tail.split_at(end + 1);
            let cut = |line: &&'_ str| line.get(2..).unwrap_or_default().to_owned();
            let inner: Vec<String> = meaning.iter().map(cut).collect();
            let inner: Vec<&str> = inner.iter().map(String::as_str).collect();
            out.push(Block::Definition {
                term: spans(line.trim()),
                body: blocks(&inner),
            });
            rest = after;
        } else {
            let end = rest
                .iter()
                .position(|line| line.trim().is_empty() || item(line).is_some())
                .unwrap_or(rest.len());
            let (paragraph, after) = rest.split_at(end);
            let joined = paragraph
                .iter()
                .map(|line| line.trim())
                .collect::<Vec<_>>()
                .join(" ");
            out.push(Block::Paragraph(spans(&joined)));
            rest = after;
        }
    }
    out
}

/// The number of the item that a line begins, and the bytes before its text. An item of a list without order has no number.
fn item(line: &str) -> Option<(Option<u32>, usize)> {
    if line.starts_with("- ") {
        return Some((None, 2));
    }
    let (number, _) = line.split_once(". ")?;
    let is_number = number.len() <= 3 && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: Option<u32> = number.parse().ok().filter(|_| is_number);
    number.map(|found| (Some(found), line.find(' ').unwrap_or_default() + 1))
}

/// Number of lines that belong together: the lines that `belongs` accepts, and empty ones between them.
fn length(lines: &[&str], belongs: impl Fn(&str) -> bool) -> usize {
    let mut end = 0;
    for (at, line) in lines.iter().enumerate() {
        if belongs(line) {
            end = at + 1;
        } else if !line.trim().is_empty() {
            break;
        }
    }
    end
}

/// Understands the marks in a line of text.
pub(super) fn spans(text: &str) -> Vec<Span> {
    let mut out = Vec::new();
    let mut style = Style::Plain;
    let mut current = String::new();
    let mut chars = text.chars().peekable();
    let mut turn = |style: &mut Style, current: &mut String, to: Style| {
        if !current.is_empty() {
            out.push(Span::new(*style, std::mem::take(current)));
        }
        *style = if *style == to { Style::Plain } else { to };
    };
    let mut code = false;
    while let Some(c) = chars.next() {
        match c {
            '`' => {
                turn(&mut style, &mut current, Style::Bold);
                code = !code;
            }
            _ if code => current.push(c),
            '\\' => current.push(chars.next().unwrap_or('\\')),
            '*' if chars.peek() == Some(&'*') => {
                chars.next();
                turn(&mut style, &mut current, Style::Bold);
            }
            '*' => turn(&mut style, &mut current, Style::Italic),
            _ => current.push(c),
        }
    }
    turn(&mut style, &mut current, Style::Plain);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let text = "# A\nThese:\n- one `x`\n  goes on\n- two\n\n  more of two\n\n      code\n\n- three\nplain\n\n1. first\n   and on\n\n10. tenth\n    too\n\nv1. no item\n";
        let plain = |text: &str| Block::Paragraph(vec![Span::new(Style::Plain, text)]);
        let item = |number, body| Block::Item { number, body };
        let one = vec![
            Span::new(Style::Plain, "one "),
            Span::new(Style::Bold, "x"),
            Span::new(Style::Plain, " goes on"),
        ];
        assert_eq!(
            parse(text)[0].blocks,
            [
                plain("These:"),
                item(None, vec![Block::Paragraph(one)]),
                item(
                    None,
                    vec![
                        plain("two"),
                        plain("more of two"),
                        Block::Literal(vec!["code".into()]),
                    ]
                ),
                item(None, vec![plain("three")]),
                plain("plain"),
                item(Some(1), vec![plain("first and on")]),
                item(Some(10), vec![plain("tenth too")]),
                plain("v1. no item"),
            ]
        );
    }

    #[test]
    fn all_forms() {
        let text = "ignored\n# ONE\n\nSome `a*b` and\n*c* \\*d.\n\n    literal  x\n\n      y\n\nmore\n# TWO\n**-x** *N*\n: Means\n  that.\n\n  And this:\n\n      code\n\nnext\n: thing\n";
        let found = parse(text);
        assert_eq!(found.len(), 2);
        let plain = |text| Span::new(Style::Plain, text);
        let bold = |text| Span::new(Style::Bold, text);
        let italic = |text| Span::new(Style::Italic, text);
        assert_eq!(
            found[0].blocks,
            [
                Block::Paragraph(vec![
                    plain("Some "),
                    bold("a*b"),
                    plain(" and "),
                    italic("c"),
                    plain(" *d."),
                ]),
                Block::Literal(vec!["literal  x".into(), String::new(), "  y".into()]),
                Block::Paragraph(vec![plain("more")]),
            ]
        );
        assert_eq!(
            found[1].blocks,
            [
                Block::Definition {
                    term: vec![bold("-x"), plain(" "), italic("N")],
                    body: vec![
                        Block::Paragraph(vec![plain("Means that.")]),
                        Block::Paragraph(vec![plain("And this:")]),
                        Block::Literal(vec!["code".into()]),
                    ],
                },
                Block::Definition {
                    term: vec![plain("next")],
                    body: vec![Block::Paragraph(vec![plain("thing")])],
                },
            ]
        );
    }
}
