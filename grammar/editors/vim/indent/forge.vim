" Indents a line by the brackets that are open at the end of the line above.
if exists("b:did_indent")
  finish
endif
let b:did_indent = 1
setlocal indentexpr=ForgeIndent() indentkeys=0},0),0],o,O
let b:undo_indent = "setlocal indentexpr< indentkeys<"

function! ForgeIndent() abort
  let above = prevnonblank(v:lnum - 1)
  let text = substitute(getline(above), '"[^"]*"\|#.*$', '', 'g')
  let opened = len(substitute(text, '[^{(\[]', '', 'g'))
  let closed = len(substitute(substitute(text, '^\s*[})\]]\+', '', ''), '[^})\]]', '', 'g'))
  let change = opened > closed ? 1 : opened < closed ? -1 : 0
  if getline(v:lnum) =~ '^\s*[})\]]'
    let change -= 1
  endif
  return max([0, indent(above) + change * shiftwidth()])
endfunction
