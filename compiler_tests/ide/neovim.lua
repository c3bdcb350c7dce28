-- Neovim without a window: what a person would do, and what the server answers. FORGEC starts it.
local function say(name, value) print(name .. '=' .. vim.fn.json_encode(value)) end
local forgec = vim.split(vim.env.FORGEC, ' ')
local id = vim.lsp.start_client({ name = 'forge', cmd = forgec, root_dir = vim.fn.getcwd() })
vim.lsp.buf_attach_client(0, id)

local function wait(condition) return vim.wait(60000, condition, 20) end
local function codes()
  local found = {}
  for _, d in ipairs(vim.diagnostic.get(0)) do
    table.insert(found, d.code or (d.user_data and d.user_data.lsp and d.user_data.lsp.code))
  end
  return found
end
local function at(text)
  vim.fn.cursor(1, 1)
  vim.fn.search('\\V' .. text, 'cW')
  return vim.lsp.util.make_position_params()
end
local function ask(method, params)
  local answers = vim.lsp.buf_request_sync(0, method, params, 60000)
  for _, answer in pairs(answers or {}) do return answer.result end
end

local done, problem = pcall(function()
wait(function() return #vim.diagnostic.get(0) > 0 end)
say('wrong', codes())
local action = ask('textDocument/codeAction', {
  textDocument = vim.lsp.util.make_text_document_params(),
  range = vim.lsp.util.make_given_range_params({ 4, 0 }, { 4, 40 }).range,
  context = { diagnostics = {} },
})
say('actions', vim.tbl_map(function(each) return each.title end, action))
vim.lsp.util.apply_workspace_edit(action[1].edit, 'utf-16')
say('fixed', wait(function() return not vim.tbl_contains(codes(), 'F103') end))
say('hover', ask('textDocument/hover', at('dtype')).contents.value)
local offered = ask('textDocument/completion', at('f32'))
say('completion', vim.tbl_map(function(each) return each.label end, offered.items))
say('definition', ask('textDocument/definition', at('twice')))
local rename = vim.tbl_extend('force', at('twice'), { newName = 'double' })
vim.lsp.util.apply_workspace_edit(ask('textDocument/rename', rename), 'utf-16')
say('renamed', vim.fn.getline(2))
end)
if not done then print(problem) end
vim.cmd('qa!')
